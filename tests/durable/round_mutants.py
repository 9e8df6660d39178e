"""Schedulers that know less of a round than they should, to see that the tests notice."""

MUTANTS = {}
