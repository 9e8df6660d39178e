"""Ways to take a new request for a known one next to the spider, each of which tests must notice.

    python -m tests.early_mutants [name …]

See `tests/text_mutants.py`.
"""

import sys

from tests.text_mutants import run

BASE = "scrapy_bloom/dupefilter/base.py"
READS = "scrapy_bloom/fingerprints/depends_on.py"
MIDDLEWARE = "scrapy_bloom/early/middleware.py"
LINKS = "scrapy_bloom/early/links.py"
TESTS = (
    *("tests/fingerprints/test_reads.py", "tests/test_early.py", "tests/test_recent.py"),
    "tests/test_streams.py",
)

MUTANTS = {
    # what a fingerprint depends on
    "callback_ignored": (
        BASE,
        'return self._prefix_of_callback(callback) if self._reads_callback else ""',
        'return ""',
    ),
    "callback_by_name": (BASE, "function = callback.__func__", "function = callback.__name__"),
    "callback_of_any_object": (BASE, " or callback.__self__ is not spider", ""),
    "callbacks_without_end": (BASE, " and len(self._callbacks) < MOST_CALLBACKS", ""),
    "none_is_no_callback": (
        BASE,
        '            callback = getattr(spider, "parse", None)\n',
        '            return ""\n',
    ),
    "meta_of_links_ignored": (BASE, "(meta and not self._meta_keys.isdisjoint(meta))", "False"),
    "meta_next_to_the_spider_ignored": (
        BASE,
        "return False\n            meta = request.meta",
        "return False\n            meta = {}",
    ),
    "meta_ignored": (
        BASE,
        "self._reads is not None:\n                    meta = request.meta",
        "self._reads is not None:\n                    meta = {}",
    ),
    "redirects_are_known": (BASE, " or REDIRECT_URLS in meta", ""),
    "fragments_ignored": (
        BASE,
        "self.ignores_fragments = self._fingerprint_of_url is not None",
        "self.ignores_fragments = True",
    ),
    "fragments_of_links_ignored": (
        LINKS,
        "if dupefilter.ignores_fragments:\n                    text",
        "if True:\n                    text",
    ),
    "substitutes_are_known": (BASE, "self._fingerprinter.has_substituted or ", ""),
    "fingerprints_of_the_unknown_only": (
        BASE,
        "self._fingerprint_of_url is None\n                and self._recent",
        "self._reads is None\n                and self._recent",
    ),
    "urls_never_remembered": (BASE, "if url is None and self._caches", "if self._caches"),
    "recent_fingerprints_of_redirects": (
        BASE,
        "elif REDIRECT_URLS not in request.meta:",
        "else:",
    ),
    "extractor_guesses_callbacks": (
        LINKS,
        'dupefilter.prefix_of(_ANY, "GET", b"", _META_OF_RULES) != ""',
        "False",
    ),
    "extractor_forgets_spellings": (LINKS, "(self.canonicalize and ", "(False and "),
    "extractor_forgets_rules": (LINKS, '{"rule": 0, "link_text": ""}', "{}"),
    "follow_new_ignores_its_callback": (
        LINKS,
        "dupefilter.prefix_of(callback, method, body, meta)",
        "dupefilter.prefix_of(None, method, body, meta)",
    ),
    # whose word is taken
    "word_inherited": (
        READS,
        'word = vars(kind).get("bloom_reads")',
        'word = getattr(kind, "bloom_reads", None)',
    ),
    "inner_not_asked": (
        READS,
        "                waiting += filter(_is_fingerprinter, _parts(asking))\n",
        "",
    ),
    "slots_not_asked": (READS, "getattr(fingerprinter, name, None) if is_slot else value", "value"),
    "methods_of_classes_only": (
        READS,
        'callable(getattr(part, "fingerprint", None))',
        'callable(getattr(type(part), "fingerprint", None))',
    ),
    "any_word": (READS, "not all(map(_is_word, word))", "False"),
    "late_keys": (READS, "if late := sorted(filter(_is_set_late, word)):", "if late := []:"),
    "table_by_name_alone": (READS, "if not _is_unchanged(fingerprinter, release):", "if False:"),
    "source_not_read": (
        READS,
        "return digest_of(folder, release.files) in release.hashes",
        "return True",
    ),
    "replaced_methods": (READS, "if not all(is_own_method(", "if not all(True or is_own_method("),
    "imitations": (READS, "is not kind:  # another", "is None:  # another"),
    "neutral_inherited": (
        MIDDLEWARE,
        'vars(kind).get("bloom_neutral") is True',
        'getattr(kind, "bloom_neutral", None) is True',
    ),
    "list_takes_subclasses": (MIDDLEWARE, "kind in self._passed", "issubclass(kind, self._passed)"),
    "methods_of_objects": (
        MIDDLEWARE,
        'owner = getattr(method, "__self__", method)\n',
        'owner = getattr(method, "__self__", method)\n'
        '            if not hasattr(type(owner), "process_spider_output"):\n'
        "                continue\n",
    ),
    "nearer_is_passed": (MIDDLEWARE, "        elif nearer:\n", "        elif False:\n"),
    "called_where_it_is_off": (MIDDLEWARE, "if type(self) is DropEarlyMiddleware:", "if False:"),
    "subclasses_not_called": (MIDDLEWARE, "if type(self) is DropEarlyMiddleware:", "if True:"),
    "neutral_for_other_methods": (MIDDLEWARE, " and not is_patched", ""),
    "paths_of_anything": (MIDDLEWARE, "if not isinstance(found, type):", "if False:"),
}


if __name__ == "__main__":
    sys.exit(run(MUTANTS, TESTS))
