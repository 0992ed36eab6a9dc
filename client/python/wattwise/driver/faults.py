"""Reads tables of a TOML file, gathering every fault instead of stopping at the first."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattwise.errors import Violation

_TYPES: dict[str, tuple[type, ...]] = {
    "a text": (str,),
    "true or false": (bool,),
    "a whole number": (int,),
    "a number": (int, float),
}


class Table:
    """One table of the file, whose values are taken one by one.

    Args:
        name: what it is called in the file, such as "train".
        values: what it holds.
        faults: where faults are noted.
    """

    def __init__(self, name: str, values: Mapping[str, Any], faults: list[Violation]) -> None:
        self.name = name
        self._values = values
        self._faults = faults

    def fault(self, key: str, text: str) -> None:
        """Notes a fault of one key."""
        self._faults.append(Violation(f"{self.name}.{key}" if self.name else key, text))

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._values

    def know(self, keys: Sequence[str], *, what: str = "key") -> None:
        """Notes every key that is not among these, with the one that may have been meant."""
        for key in self._values:
            if key not in keys:
                nearest = difflib.get_close_matches(key, keys, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(keys)}"
                self.fault(key, f"no {what} is called so; {hint}")

    def table(self, key: str, *, required: bool = True) -> Table | None:
        """The table under a key; None where there is none."""
        found = self._values.get(key)
        if isinstance(found, Mapping):
            return Table(f"{self.name}.{key}" if self.name else key, found, self._faults)
        if found is not None:
            self.fault(key, f"must be a table: write [{self.name + '.' if self.name else ''}{key}] above its keys")
        elif required:
            self.fault(key, f"is missing: the file needs a table [{key}]")
        return None

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        return str(self._value(key, "a text", default) or "")

    def switch(self, key: str, *, default: bool) -> bool:
        """True or false."""
        return bool(self._value(key, "true or false", default))

    def whole(self, key: str, default: int | None = None, *, least: int) -> int:
        """A whole number from `least` on."""
        value = self._value(key, "a whole number", default)
        if value is not None and value < least:
            self.fault(key, f"is {value}; give {least} or more")
        return least if value is None else int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(key, "a number", default)
        if value is not None and not 0 < value < math.inf:
            self.fault(key, f"is {value}; give a finite number above 0")
            return 1.0
        return 1.0 if value is None else float(value)

    def value(self, key: str, kind: str | None) -> Any:
        """A value of a kind, of whatever kind if that is None; None where there is none or one of another kind."""
        if kind is None:
            return self._values.get(key)
        return self._value(key, kind, None) if key in self._values else None

    def wholes(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers above 0."""
        found = self._list(key)
        if any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in found):
            self.fault(key, f"is {list(found)}; give whole numbers above 0, such as [32, 64, 128]")
            return ()
        return found

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self._list(key)
        if not all(isinstance(word, str) for word in found):
            self.fault(key, 'must be a list of texts, one for each word, such as ["python", "train.py"]')
            return ()
        return found

    def _list(self, key: str) -> tuple[Any, ...]:
        found = self._values.get(key)
        if key not in self._values:
            self.fault(key, "is missing")
        elif not isinstance(found, list) or not found:
            self.fault(key, "must be a list that is not empty")
        else:
            return tuple(found)
        return ()

    def _value(self, key: str, kind: str, default: Any) -> Any:
        if key not in self._values:
            if default is None:
                self.fault(key, "is missing")
            return default
        value = self._values[key]
        # What Python takes for a number is not one in the file.
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "true or false"):
            self.fault(key, f"is {value!r}; give {kind}")
            return None
        if value == "":
            self.fault(key, "is empty")
        return value
