"""What breaks the keeping of failed requests, to see that the tests notice.

`DURABLE_MUTANT=<name> pytest tests/durable/<module>` runs tests with one of them.
"""

MUTANTS = {}
