"""The forms of values and items, which are the same in each process: sets are sorted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from datetime import date, time, timedelta
from enum import Enum
from hashlib import blake2b
from json import JSONEncoder
from numbers import Number
from pathlib import PurePath
from typing import Any
from uuid import UUID

from itemadapter import ItemAdapter
from scrapy.utils.python import global_object_name


def digest_of(value: Any, otherwise: object, only: Collection[str] | None = None) -> bytes:
    """Return 16 bytes for `value`, of an item for these fields `only`; of a value without a form,
    as far as its text is the same, for `otherwise`. Raises as the `repr` of that does."""
    try:
        if only:
            value = {name: each for name, each in ItemAdapter(value).items() if name in only}
        text = as_json(value)
    except Exception:  # noqa: BLE001 - classes of others
        text = repr(otherwise)
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _form(value: Any) -> Any:
    """Return the form of a value that is not JSON. Raises TypeError for one that has none."""
    if ItemAdapter.is_item(value) or isinstance(value, Mapping):
        return {**(value if isinstance(value, Mapping) else ItemAdapter(value))}
    if isinstance(value, (bytes, bytearray, memoryview)):
        form: Any = bytes(value).hex()
    elif isinstance(value, Set):
        form = sorted(map(as_json, value))
    elif isinstance(value, Sequence):
        return [*value]
    elif isinstance(value, (date, time)):
        form = value.isoformat()
    elif isinstance(value, (Number, timedelta, UUID, PurePath)):
        form = str(value)
    elif isinstance(value, Enum):
        form = value.name
    else:
        raise TypeError(f"it is of {global_object_name(type(value))}")
    return {type(value).__name__: form}


as_json = JSONEncoder(sort_keys=True, separators=(",", ":"), default=_form).encode
"""Returns the form of a value as JSON. Raises anything for one that has none."""
