"""Ways to break the form of stored requests, each of which the tests below must notice.

    python -m tests.job.payload_mutants [name …]

See `tests/text_mutants.py`.
"""

import sys

from tests.text_mutants import run

COMPACT, DICTIONARIES, CODEC = (
    f"scrapy_bloom/job/{name}.py" for name in ("compact", "dictionaries", "codec")
)
TESTS = [f"tests/job/test_{name}.py" for name in ("compact", "dictionaries", "without_pickle")]

MUTANTS = {
    # a wrong dictionary and another slot give another request
    "no_checksum": (DICTIONARIES, "if checksum(text, slot) != deflated[2:_HEAD]:", "if False:"),
    "no_checksum_of_what_is_not_deflated": (
        CODEC,
        "if checksum(text, stored.slot) != payload[1:3]:",
        "if False:",
    ),
    "checksum_without_slot": (
        DICTIONARIES,
        "zlib.crc32(raw, zlib.crc32(text))",
        "zlib.crc32(text)",
    ),
    # a bomb takes what memory there is
    "no_limit": (DICTIONARIES, "LONGEST + 1)", "0)"),
    "no_end": (DICTIONARIES, " or not inflater.eof", ""),
    "rubbish_behind": (DICTIONARIES, " or inflater.unused_data", ""),
    # what is secret outlives its request
    "secrets_in_samples": (DICTIONARIES, "if _may_be_secret(fields, text):", "if False:"),
    "bodies_in_samples": (DICTIONARIES, 'fields.get("body")', "False"),
    "cookies_in_samples": (DICTIONARIES, 'or fields.get("cookies")', ""),
    "names_in_samples": (DICTIONARIES, "or _SECRET.search(text)", ""),
    "users_in_samples": (
        DICTIONARIES,
        "or any(map(_USERINFO.search, (text, *_texts_in(fields))))",
        "",
    ),
    "proxies_in_samples": (DICTIONARIES, 'fields.get("meta", {}).get("proxy")', "None"),
    # a proposal that no store has kept
    "used_at_once": (
        DICTIONARIES,
        "self.proposal = self._proposed()",
        "self.learn(self._proposed())",
    ),
    "one_id_for_two": (DICTIONARIES, "while id_of(text) in self.texts:", "while False:"),
    # what comes back is another request
    "slot_is_a_prefix": (
        COMPACT,
        'f"https://{slot}"\n        if not url.startswith(start):',
        'f"https://{slot}"\n        if False:',
    ),
    "subclasses": (
        COMPACT,
        "kind = type(value)\n",
        "kind = next((k for k in (bool, int, str) if isinstance(value, k)), type(value))\n",
    ),
    "shared_twice": (COMPACT, "or (id(container) in seen and container != ())", ""),
    "any_depth": (COMPACT, "if not levels or (", "if ("),
    "order_of_a_class": (
        COMPACT,
        'or ("_class" in fields and tuple(fields)[: len(ORDER)] != ORDER)',
        "",
    ),
    "depth_anywhere": (
        COMPACT,
        "name, value = next(reversed(meta.items()))",
        'name, value = "depth", meta.get("depth")',
    ),
    # code of a stored request runs
    "pickles_anyway": (CODEC, "    if not pickles:\n        raise", "    if False:\n        raise"),
    "pickled_anyway": (CODEC, "            if not self._pickles:\n", "            if False:\n"),
    "any_class": (CODEC, 'if not self._pickles and "_class" in fields:', "if False:"),
    "imported_class": (
        CODEC,
        "vars(sys.modules.get(module, object))",
        "vars(__import__('importlib').import_module(module))",
    ),
}


if __name__ == "__main__":
    sys.exit(run(MUTANTS, TESTS))
