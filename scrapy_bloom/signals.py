"""Signals of this package, for `crawler.signals.connect`."""

before_commit = object()
"""Sent by DurableScheduler with JOBDIR, with the argument `spider`, before each commit that
acknowledges requests, the last one of a crawl included.

Handlers write what they keep of the responses so far to where it is safe, and are done when
they return: they must not be coroutines. One that raises stops the acknowledging: the spider
closes with reason `bloom_error`, and what was not acknowledged is repeated when the job is
resumed. After each such signal, what is in memory of a handler may be lost.
"""
