"""Changes of the text of the package, each of which tests must notice.

    python -m tests.job.text_mutants SUITE [NAME …]

See `tests/text_mutants.py`. A suite has mutants by the file that they change.
"""

import sys

from tests.text_mutants import run

HOLDS = {
    "job/holds.py": {
        "each_refusal_is_a_hold": ("if refusal.is_in_flight:", "if False:"),
        "a_suspect_holds": ("if refusal.is_suspect and times", "if False and times"),
        "two_refusals_hold": ("if times > 2 * FRESH:", "if times > FRESH:"),
        "workers_do_not_add_up": ("times > 3 * FRESH:  #", "True:  #"),
        "no_probe_uses_a_try": ("used_up = used_up or refusal.is_suspect", "pass"),
        "an_answer_takes_away_none": ("else -FRESH", "else 0"),
        "at_full_speed_at_once": (
            "scheduler.hold(slot, -inf, -recovery(self._rows[slot]))",
            "pass",
        ),
        "what_was_refused_stays_in_front": ("request.priority - 1", "request.priority"),
        "the_first_in_line_asks": ("hold.times % 2 == 1", "False"),
        "an_older_answer_ends_the_hold": (
            "if scheduler.is_probe(request, slot):\n            logger.debug",
            "if slot in scheduler.holds:\n            logger.debug",
        ),
        "refusals_are_cached": ('meta["dont_cache"] = True', "pass"),
        "the_own_meta_is_lost": ("request.meta.update(own_meta)", "pass"),
        "media_go_to_the_scheduler": ("or not scheduler.has_dispatched(request)", "or False"),
        "no_end_of_holds_in_a_row": ("if times >= most:", "if False:"),
        "a_bad_page_holds_for_ever": ("refusal.returns > most", "False"),
        "all_go_at_the_end": ("if probe > 0:", "if False:"),
        "one_request_goes_first_after_a_hold_by_hand": ("if not hold.times:", "if False:"),
    },
    "sqlite_backend/request_store.py": {
        "a_kill_forgets_the_row": ("elif times or end > now:", "elif end > now:"),
        "a_kill_forgets_the_recovery": ("if times < 0:", "if False:"),
        "a_clock_makes_it_longer": ("min(until, now + pause)", "until"),
        "a_release_leaves_what_was_put_off": (
            "if before is not None and not isinstance(self.pending, SlotQueue):",
            "if False:",
        ),
    },
    "job/delays.py": {
        "until_is_the_last": ("Hold(max(self.until, until)", "Hold(until"),
        "the_host_has_a_hold_by_hand_end": (
            "(not self.times and self.until > monotonic())",
            "False",
        ),
    },
    "job/ledger_scheduler.py": {
        "what_waits_in_the_downloader_is_sent": (
            "answer_unsent(self.crawler, slot, self.sent_back)\n",
            "pass\n",
        ),
        "a_hold_by_hand_that_is_over_counts": (".times if hold.times > 0 else -1", ".times"),
    },
}
BUDGET = {
    "job/ledger_scheduler.py": {
        "put_before_it_is_counted": (
            "self._is_over(self._budget, request):",
            "self._push_to_store(request, delay) and self._is_over(self._budget, request):",
        ),
        "retries_count": ("return not self._is_again(request) and not", "return not"),
        "redirects_of_another_slot_do_not_count": (") and self._slot_of(request) in again", ")"),
        "capped_start_requests_are_kept_twice": (
            "self._start_requests.mark_stored()\n        if is_kept",
            "pass\n        if is_kept",
        ),
        "capped_children_are_kept_twice": ("self._note_stored(request, ())", "pass"),
    },
    "sqlite_backend/budget.py": {
        "one_more": ("WHERE pushed < ?", "WHERE pushed <= ?"),
        "a_star_is_no_limit": ('self._limits.get("*", _UNLIMITED)', "_UNLIMITED"),
        "slots_without_a_limit_are_not_counted": (
            "if not limit or",
            "if limit == _UNLIMITED:\n            return True\n        if not limit or",
        ),
        "a_new_round_goes_on_counting": ('0")\n        self._file', 'pushed")\n        self._file'),
        "what_is_pending_is_not_counted": ("        self._file.execute(_COUNT_STORED)\n", ""),
        "a_start_without_limits_keeps_the_counts": (
            "if not self._limits:\n            self._file",
            "if not self._limits:\n            0 and self._file",
        ),
        "retried_ones_are_not_counted": ("pushed = pushed + excluded.pushed", "pushed = pushed"),
        "all_retried_ones_are_asked": ("WHERE place <= most", "WHERE place"),
        "retried_ones_stay_capped": ("DELETE FROM capped ", "UPDATE capped SET retried = 0 "),
        "what_was_retried_once_is_asked_again": ("SET retried = 0 WHERE", "SET retried = 1 WHERE"),
        "failed_ones_of_earlier_rounds_do_not_count": (
            "INSERT OR IGNORE INTO carried SELECT id FROM failed",
            "DELETE FROM carried",
        ),
        "a_round_begins_when_it_is_opened": (
            "# the start before had no budget\n",
            "pass\n        if limits:\n",
        ),
        "what_is_dispatched_is_not_noted": ("self._notes.add(fingerprint, slot)", "pass"),
        "notes_of_what_is_committed_count": ("if commits == self._file.commits:", "if True:"),
        "notes_stay": ("self._path.unlink(missing_ok=True)", "pass"),
        "what_was_noted_is_not_admitted": ("if self._asked[self.offered]:", "if False:"),
        "what_was_noted_is_admitted_for_ever": ("FROM asked WHERE id", "FROM asked WHERE 0 AND id"),
        "what_was_noted_is_admitted_in_the_next_round": (
            '"DELETE FROM asked")\n        self._asked.clear()',
            '"SELECT 1")',
        ),
        "a_retry_has_the_room_of_what_was_noted": (
            "            self._file.execute(_COUNT, (slot, _UNLIMITED))\n",
            "",
        ),
    },
    "sqlite_backend/scheduler.py": {
        "a_round_after_lost_feeds_goes_on_counting": (
            "self.round.at_begin.append(budget.begin_round)",
            "pass",
        ),
        "a_round_begins_with_the_first_commit_of_its_pages": (
            "budget is not None and budget.begins_now:",
            "False:",
        ),
        "what_comes_before_start_is_of_the_last_round": ("            self.round.begin()", "#"),
        "a_kill_forgets_what_a_retry_asks": ("if asked:\n", "if False:\n"),
    },
    "sqlite_backend/rounds.py": {
        "each_start_begins_to_count": ("if not self.is_resumed:\n         ", "if True:\n         "),
        "a_round_does_not_wait_for_capped_ones": (" UNION ALL SELECT 1 FROM capped", ""),
    },
    "sqlite_backend/request_store.py": {
        "what_is_taken_over_is_not_counted": ("self.admits(self._slot_of(request))", "pass"),
        "one_queue_for_all_has_no_slots": (
            "if self.budget is not None and not self._settings.by_slot:",
            "if False:",
        ),
        "a_round_goes_on_with_nothing": ("self.codec.loads_any(", "any("),
        "lost_ones_are_not_kept": ("self._failed.add_lost(slot, lost(request, slot))", "pass"),
    },
    "sqlite_backend/schema.py": {
        "a_number_of_an_earlier_round_counts_for_another": (
            "DELETE FROM carried WHERE id = OLD.id; END",
            "END",
        ),
    },
    "sqlite_backend/failed_store.py": {
        "retried_ones_are_told_twice": (
            "_take_capped(connection, choice, before) + _take(connection, choice, before)",
            "_take(connection, choice, before) + _take_capped(connection, choice, before)",
        ),
        "lost_ones_are_retried": (" WHERE request != x''", ""),
    },
    "job/ledger.py": {
        "capped_ones_are_not_seen": (
            'its sources are done."""\n        self._unreleased += self._fingerprints(request)',
            'its sources are done."""',
        ),
        "a_page_whose_redirect_is_capped_stays": (
            "        self._sent_again.update(self.sources_of(request))\n",
            "",
        ),
    },
    "job/failure_hooks.py": {
        "capped_ones_are_warned_of": ("reasons.pop(CAPPED, None)", "pass"),
    },
}
PAYLOAD = {
    "job/dictionaries.py": {
        # a wrong dictionary and another slot give another request
        "no_checksum": ("if checksum(text, slot) != deflated[2:_HEAD]:", "if False:"),
        "checksum_without_slot": ("zlib.crc32(raw, zlib.crc32(text))", "zlib.crc32(text)"),
        # a bomb takes what memory there is
        "no_limit": ("LONGEST + 1)", "0)"),
        "no_end": (" or not inflater.eof", ""),
        "rubbish_behind": (" or inflater.unused_data", ""),
        # what is secret outlives its request
        "secrets_in_samples": ("if _may_be_secret(fields, text):", "if False:"),
        "bodies_in_samples": ('fields.get("body")', "False"),
        "cookies_in_samples": ('or fields.get("cookies")', ""),
        "names_in_samples": ("or _SECRET.search(text)", ""),
        "users_in_samples": ("or any(map(_USERINFO.search, _texts_in(fields)))", ""),
        "proxies_in_samples": ('fields.get("meta", {}).get("proxy")', "None"),
        # a proposal that no store has kept
        "used_at_once": ("self.proposal = self._proposed()", "self.learn(self._proposed())"),
        "one_id_for_two": ("while id_of(text) in self.texts:", "while False:"),
    },
    "job/codec.py": {
        "no_checksum_of_what_is_not_deflated": (
            "elif checksum(text := payload[3:], slot) != payload[1:3]:",
            "elif not (text := payload[3:]):",
        ),
        # code of a stored request runs
        "pickles_anyway": (
            "if not self._pickles:\n                raise",
            "if False:\n                raise",
        ),
        "pickled_anyway": ("(OBJECTS in fields or not text) and not self._pickles", "False"),
        "any_class": ('if not self._pickles and "_class" in fields:', "if False:"),
        "imported_class": (
            "vars(sys.modules.get(module, object))",
            "vars(__import__('importlib').import_module(module))",
        ),
    },
    "job/request_text.py": {
        # what comes back is another request
        "slot_is_a_prefix": ('}"\n        if not url.startswith(start):', '}"\n        if False:'),
        "subclasses": (
            "        kind = type(value)\n",
            "        kind = type(value).__mro__[-2]\n",
        ),
        "shared_twice": (" or (id(value) in self._seen and value != ())", ""),
        "any_depth": ("or not levels or", "or"),
        "depth_anywhere": ("= next(reversed(values), None)", "= name if name in values else None"),
        "types_of_defaults": ("type(value) is not type(default) or ", ""),
        "objects_apart": ("kept(each, _CONTAINERS)", "kept(each)"),
        # a few bytes take gigabytes, or the stack
        "lists_of_any_length": ("> _FEW or len(text) > _SHORT:", "> 1e9:"),
        "numbers_of_any_length": (" and len(data) <= LONGEST_NUMBER", ""),
        "buffers_stay": ("if len(text) > _SHORT:\n        _packers", "if False:\n        _packers"),
    },
}
LATER = {
    "sqlite_backend/job_file.py": {
        "due_ignored": ("WHERE due <= ? ORDER", "WHERE due <= ? + 1e9 ORDER"),
        "moved_without_delete": ('"DELETE FROM later WHERE id = ?"', '"SELECT ?"'),
        "not_counted_as_left": ("return not self.later and not", "return not"),
        "not_sorted_by_time": ("ORDER BY due, id", "ORDER BY id"),
        "numbers_meet": ("._last = max(self._last, self.recount_later())", ".recount_later()"),
    },
    "sqlite_backend/request_store.py": {
        "first_due_ignored": ("or due > (now := time.time()):", "or (now := 1e12) < due:"),
        "children_left_behind": ("            self.renumbered(row)\n", ""),
        "slot_of_other_settings": ("if group[0] and not self._settings.by_slot", "if False"),
        "stand_in_for_any_class": ("if type(self.pending) in _OF_SCRAPY and", "if True or"),
    },
    "job/delays.py": {
        "meta_key_kept": ("request.meta.pop(NOT_BEFORE)", "request.meta[NOT_BEFORE]"),
        "timer_not_moved": ("if at < self._at:\n", "if self._at == math.inf:\n"),
        "sleeps_over_a_jump": ("min(seconds, MOST_SECONDS)", "seconds"),
        "naive_times": ("        if value.utcoffset() is None:\n            return None\n", ""),
    },
    "job/ledger_scheduler.py": {
        "not_counted_as_pending": ("+ len(store.pending) + store.later", "+ len(store.pending)"),
        "no_timer": ("self._alarm.set(due if due > 0 else OVERDUE_SECONDS)", "pass"),
        "no_more_groups": ("self._alarm.set(0)\n        return True", "return True"),
        "closes_beside_a_page": ("> self._delay_wait and self._is_at_rest", "> self._delay_wait"),
        "closes_for_a_slot_without_requests": ("None or not self.has_pending_requests()", "None"),
        "memory_forgotten": ("self._delayed.push(request, delay)", "return"),
    },
    "sqlite_backend/scheduler.py": {
        "timer_left": ("        self._alarm.cancel()\n", ""),
    },
    "sqlite_backend/status.py": {
        "never_is_a_time": ("due is not None and due < inf", "due is not None"),
    },
    "sqlite_backend/repeated_children.py": {
        "kept_in_a_digest": ('"download_latency", NOT_BEFORE, *', '"download_latency", *'),
    },
}
ORDERS = {
    "sqlite_backend/orders.py": {
        "what_is_in_flight_is_dropped": ("(is_popped or row in self.popped)", "is_popped"),
        "what_the_file_marks_is_dropped": (
            "(is_popped or row in self.popped)",
            "row in self.popped",
        ),
        "pushed_rows_are_not_there_yet": ("file.write()", "pass"),
        "the_state_is_forgotten": ("return _State(*json.loads(text))", "pass"),
        "an_answer_before_the_commit": (
            "                ledger.commit()\n        if ledger.stopped or state",
            "        if ledger.stopped or state",
        ),
        "orders_that_stand_are_passed_over": (
            'path in sorted(job.orders.glob("*.json")):',
            "path in []:",
        ),
        "only_pending_ones": ('self._at("later", {})', 'self._at("requests", {})'),
        "an_order_for_all": ("if not any(selection) or", "if"),
        "a_bad_order_is_read_again": ("self._refused.add(path)", "pass"),
        "holds_from_when_they_are_carried_out": (
            "elif self.until > now:\n                holds",
            "elif True:\n                holds",
        ),
        "holds_are_answered_and_not_made": ("changed = order.apply(self._holds)", "changed = 1"),
        "the_shorter_hold_counts": ("until = max(before, self.until)", "until = self.until"),
        "a_release_leaves_what_was_put_off": ("UPDATE later SET due = ? WHERE due =", "SELECT ?,"),
    },
    "sqlite_backend/request_store.py": {
        "queues_count_what_is_gone": ("self._queues[group].dropped(number)", "pass"),
        "slots_count_what_is_gone": ("self.pending.recount()", "pass"),
        "delayed_ones_count_on": ("._file.recount_later()\n        self._failed", "._failed"),
        "failed_ones_are_not_counted": ("self._failed.count += kept", "pass"),
    },
    "redis_backend/lua/include/later.lua": {
        "a_worker_ends_a_hold_by_hand": ("hold[2] == 0 and not by_hand", "false"),
        "the_end_of_a_hold_by_hand_is_asked_for": ("hold[2] == 0 and hold[1] <= now", "false"),
        "a_host_takes_over_a_hold_by_hand": (
            "local is_by_hand = times == 0 or hold[2] == 0 and hold[1] > now",
            "local is_by_hand = false",
        ),
    },
    "sqlite_backend/pending_store.py": {
        "noted_rows_count_as_pending": ("pending -= unmarked", "pass"),
    },
    "redis_backend/pending_store.py": {
        "parked_lists_are_passed_over": ("from parked_in(self.client, self.key)", "from ()"),
        "lists_behind_a_mark_are_passed_over": (
            'element.endswith(b"\\0") and element.count(b"\\0") == 1',
            "False",
        ),
        "lists_behind_an_older_one_are_passed_over": (
            'self.client.call("lindex", last, -1) == b""',
            "False",
        ),
    },
}
SUITES = {
    "holds": (HOLDS, ("test_holds.py", "test_hold_rules.py")),
    "budget": (BUDGET, ("test_budget.py", "test_failed.py")),
    "payload": (
        PAYLOAD,
        ("test_request_text.py", "test_dictionaries.py", "test_without_pickle.py"),
    ),
    "later": (LATER, ("test_delays.py",)),
    "orders": (ORDERS, ("test_orders.py", "../commands/test_queue.py")),
}


def mutants_of(suite):
    """Return the mutants of a suite, as `run` wants them."""
    return {
        name: (f"scrapy_bloom/{file}", *change)
        for file, changes in SUITES[suite][0].items()
        for name, change in changes.items()
    }


if __name__ == "__main__":
    suite, *names = sys.argv[1:]
    tests = [f"tests/job/{test}" for test in SUITES[suite][1]]
    sys.exit(run(mutants_of(suite), tests, names))
