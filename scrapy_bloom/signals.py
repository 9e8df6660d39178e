"""Signals of this package, for `crawler.signals.connect`."""

before_commit = object()
"""Sent by DurableScheduler with JOBDIR, with the argument `spider`, before each commit that
acknowledges requests, the last one of a crawl included.

A handler stores durably what it keeps of the responses so far, and has finished when it returns:
it must not be a coroutine. After an exception of a handler no request is acknowledged any more:
the spider closes with reason `bloom_error`, and the requests that are not acknowledged are
repeated when the job is resumed. After the signal, a crash may lose what a handler has only in
memory.
"""
