"""Between crawls: what earlier rounds have done, so that the next one fetches what is new."""
