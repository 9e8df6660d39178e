"""Requests that survive SIGKILL: from a request to its row, until it is done."""
