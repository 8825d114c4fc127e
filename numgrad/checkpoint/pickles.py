"""Pickles read as data: an interpreter of the opcodes that calls nothing and imports nothing.

A pickle is a program for a stack machine. Of its opcodes those that build None, numbers, texts,
lists, tuples and dicts do so here as in Python. A global name is looked up in a fixed list
(`allowlist`), which gives a function of this package or nothing; what such a function returns
describes tensors and is no PyTorch object. There is no other way to get at anything, and no option
to allow one.

Source: the comments of ``pickletools`` in Python's standard library describe each opcode; PEP 3154
(protocol 4), PEP 574 (protocol 5).
"""

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from .allowlist import lookup
from .contents import short
from .errors import CheckpointError
from .limits import (
    MAX_GLOBAL_NAME,
    MAX_INTEGER_BYTES,
    MAX_LINE_BYTES,
    MAX_OPCODES,
    MAX_PICKLE_BYTES,
    SMALL_CONTAINERS,
    SMALL_COPIES,
    KeyBudget,
)
from .source import Cursor, Source
from .symbols import Built, Global, Text

PROTOCOL = 5

_DICTS = (dict, OrderedDict, Counter)
_KEYS = (type(None), bool, int, float, str, bytes, Text)
_MARK = object()
_NOTHING = object()


class Interpreter:
    """Reads the pickles of one file; the limits hold for all of them together."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._opcodes = MAX_OPCODES
        self._bytes = MAX_PICKLE_BYTES
        self._copies = SMALL_COPIES + 2 * source.size
        self._containers = SMALL_CONTAINERS + source.size // 6
        self.keys = KeyBudget(source.size)

    def copied(self, count: int) -> bool:
        """Whether so many bytes more may be copied: a call of 4 bytes can ask for very many."""
        self._copies -= count
        return self._copies >= 0

    def contained(self) -> bool:
        """Whether there may be one container more."""
        self._containers -= 1
        return self._containers >= 0

    def run(self, cursor: Cursor, persistent: Callable[[Any], Any] | None = None) -> Any:
        """The object of the pickle at the cursor, which then stands behind it.

        Args:
            cursor: where the pickle begins.
            persistent: gets what identifies an object kept outside of the pickle, and returns what
                stands for it; None where the format has no such.

        Raises:
            CheckpointError: the pickle is cut off, malformed, too large, or wants more than data.
        """
        machine = _Machine(self, cursor, persistent)
        start, limit = cursor.position, self._bytes
        stack = machine.stack
        count = 0
        while True:
            code = cursor.read(1)
            count += 1
            if count > self._opcodes:
                raise cursor.error(f"pickles of more than {MAX_OPCODES} steps")
            if cursor.position - start > limit:
                raise cursor.error(f"pickles of more than {MAX_PICKLE_BYTES} bytes")
            if code == b".":
                break
            action = _ACTIONS.get(code)
            if action is None:
                machine.refuse(code)
            action(machine)
        self._opcodes -= count
        self._bytes -= cursor.position - start
        if len(stack) != 1 or stack[0] is _MARK:
            raise cursor.error(f"{len(stack)} objects at the end of a pickle that has one")
        return stack[0]


class _Machine:
    """The stack, the memo, and one method for each opcode."""

    def __init__(
        self, owner: Interpreter, cursor: Cursor, persistent: Callable[[Any], Any] | None
    ) -> None:
        self.source, self.cursor, self.persistent = owner.source, cursor, persistent
        self.copied, self.contained, self.keys = owner.copied, owner.contained, owner.keys
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self._start = cursor.position

    # -------------------------------------------------------------------------------------- helpers

    @property
    def place(self) -> str:
        """The opcode that is being read, and the text before it: often the name of what is made."""
        for item in reversed(self.stack[-6:]):
            if type(item) in (str, Text) and item != "storage":
                return f"{self.cursor.place}, after {short(item)[:110]}"
        return self.cursor.place

    def error(self, reason: str) -> CheckpointError:
        """An error at this place."""
        return self.source.error(self.place, reason)

    def refuse(self, code: bytes) -> NoReturn:
        """Refuse an opcode that is no data."""
        what = _REFUSED.get(code)
        if what is not None:
            raise self.error(f"it {what}")
        raise self.error(f"unknown pickle opcode {code!r}")

    def pop(self) -> Any:
        """The top of the stack, taken off."""
        if not self.stack or self.stack[-1] is _MARK:
            raise self.error("the pickle takes more from its stack than there is")
        return self.stack.pop()

    def top(self) -> Any:
        """The top of the stack."""
        if not self.stack or self.stack[-1] is _MARK:
            raise self.error("the pickle takes more from its stack than there is")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        """What lies above the topmost mark, taken off together with it."""
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise self.error("the pickle goes back to a mark that is not there")

    def number(self, size: int) -> int:
        """The next ``size`` bytes as an unsigned integer."""
        return int.from_bytes(self.cursor.read(size), "little")

    def line(self) -> str:
        """The next line, of ASCII."""
        try:
            return self.cursor.line(MAX_LINE_BYTES).decode("ascii")
        except UnicodeDecodeError:
            raise self.error("a line that is no ASCII") from None

    def put(self, key: int) -> None:
        """Remember the top of the stack. Who numbers as picklers do needs no dict."""
        top = self.top()
        memo = self.memo
        if key == len(memo):
            memo.append(top)
            return
        if not 0 <= key <= self.cursor.position - self._start:
            raise self.error(f"the memo's entry {short(key)}, of which there are fewer")
        memo.extend([_NOTHING] * (key + 1 - len(memo)))
        memo[key] = top

    def get(self, key: int) -> None:
        """Push what was remembered."""
        memo = self.memo
        if not 0 <= key < len(memo) or memo[key] is _NOTHING:
            raise self.error(f"the memo has no entry {short(key)}")
        self.stack.append(memo[key])

    def contain(self, made: Any) -> None:
        """Push a new container."""
        if not self.contained():
            raise self.error("the pickle has more lists, tuples and dicts than a file of its size")
        self.stack.append(made)

    def text(self, size: int) -> None:
        """Push a text of ``size`` bytes of UTF-8."""
        try:
            self.stack.append(self.cursor.read(size).decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError as error:
            raise self.error(f"a text that is no UTF-8: {error.reason}") from None

    def old_text(self, size: int) -> None:
        """Push a text of Python 2, whose bytes may be UTF-8 or not be text at all."""
        self.contain(Text.of(self.cursor.read(size)))

    def integer(self, size: int) -> None:
        """Push a signed integer of ``size`` bytes."""
        if size > MAX_INTEGER_BYTES:
            raise self.error(f"an integer of {size} bytes")
        self.stack.append(int.from_bytes(self.cursor.read(size), "little", signed=True))

    def decimal(self, digits: str) -> int:
        """An integer written as text."""
        if len(digits) > MAX_INTEGER_BYTES or not digits.lstrip("-").isdecimal():
            raise self.error(f"no integer: {short(digits)}")
        try:
            return int(digits)
        except ValueError:
            raise self.error(f"no integer: {short(digits)}") from None

    def set_items(self, target: Any, items: list[Any]) -> None:
        """Put keys and values, in turns, into a dict."""
        if type(target) not in _DICTS:
            raise self.error(f"it sets an item of {short(target)}, which is no dict")
        if len(items) % 2:
            raise self.error("a dict's key without a value")
        for key, value in zip(items[::2], items[1::2]):
            key = self.key(key)
            if not self.keys.allows(id(target), len(target), key):
                raise self.error("too many keys that are numbers in dicts; make them texts")
            if key in target:
                raise self.error(f"the key {short(key)} twice in a dict")
            target[key] = value

    def key(self, key: Any) -> Any:
        """A key of a dict: plain data, whose hash takes no time."""
        if type(key) is tuple and len(key) <= 16 and all(type(k) in _KEYS for k in key):
            return tuple(k.plain if type(k) is Text else k for k in key)
        if isinstance(key, np.generic):  # ids out of a NumPy array
            key = key.item()
        if type(key) not in _KEYS:
            raise self.error(f"a dict's key that is {short(key)}")
        return key.plain if type(key) is Text else key

    def extend(self, target: Any, items: list[Any]) -> None:
        """Put items at the end of a list."""
        if type(target) is not list:
            raise self.error(f"it appends to {short(target)}, which is no list")
        target.extend(items)

    def find(self, module: Any, name: Any) -> None:
        """Push what a global name stands for, if the list of names has it."""
        for part in (module, name):
            if type(part) not in (str, Text):
                raise self.error(f"a global's name that is {short(part)}")
            if len(part) > MAX_GLOBAL_NAME:
                raise self.error(f"a global's name of {len(part)} characters")
        self.stack.append(lookup(self, str(module), str(name)))

    def call(self, function: Any, args: Any) -> None:
        """Push what a name of the list makes of its arguments."""
        if type(function) is not Global or function.make is None:
            what = function.full if type(function) is Global else short(function)
            raise self.error(f"it calls {what}; only data are read")
        if type(args) is not tuple:
            raise self.error(f"arguments of {function.full} that are {short(args)}, no tuple")
        self.charge(args)
        self.contain(function.make(self, args))

    def charge(self, given: Any) -> None:
        """Count what a call or a state may make a copy of."""
        for item in given if type(given) is tuple else ():
            if type(item) in (list, tuple, dict):
                count = 8 * len(item)
            else:
                count = len(item) if type(item) in (str, bytes, bytearray, Text) else 0
            if not self.copied(count):
                raise self.error("the pickle makes more copies of its data than a file of its size")

    def identify(self, pid: Any) -> None:
        """Push what stands for an object outside of the pickle."""
        if self.persistent is None:
            raise self.error("it refers to an object outside of the pickle")
        self.stack.append(self.persistent(pid))

    # -------------------------------------------------------------------------------------- opcodes

    def proto(self) -> None:
        version = self.number(1)
        if version > PROTOCOL:
            raise self.error(f"pickle protocol {version}; up to {PROTOCOL} is read")

    def frame(self) -> None:
        if self.number(8) > self.cursor.stop - self.cursor.position:
            raise self.error("a frame that goes beyond the pickle; it may be cut off")

    def int_line(self) -> None:
        digits = self.line()
        booleans = {"00": False, "01": True}
        self.stack.append(booleans[digits] if digits in booleans else self.decimal(digits))

    def long_line(self) -> None:
        self.stack.append(self.decimal(self.line().removesuffix("L")))

    def float_line(self) -> None:
        text = self.line()
        try:
            self.stack.append(float(text))
        except ValueError:
            raise self.error(f"no number: {short(text)}") from None

    def unicode_line(self) -> None:
        try:
            text = self.cursor.line(MAX_LINE_BYTES).decode("raw-unicode-escape")
        except UnicodeDecodeError as error:
            raise self.error(f"a text that cannot be read: {error.reason}") from None
        self.stack.append(text)

    def float8(self) -> None:
        self.stack.append(struct.unpack(">d", self.cursor.read(8))[0])

    def long4(self) -> None:
        size = int.from_bytes(self.cursor.read(4), "little", signed=True)
        if size < 0:
            raise self.error("an integer of a negative size")
        self.integer(size)

    def binstring(self) -> None:
        size = int.from_bytes(self.cursor.read(4), "little", signed=True)
        if size < 0:
            raise self.error("a text of a negative size")
        self.old_text(size)

    def pop_top(self) -> None:
        if not self.stack:
            raise self.error("the pickle takes more from its stack than there is")
        self.stack.pop()

    def pop_mark(self) -> None:
        self.pop_to_mark()

    def make_tuple(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.contain(tuple(reversed(items)))

    def make_dict(self) -> None:
        items = self.pop_to_mark()
        made: dict[Any, Any] = {}
        self.set_items(made, items)
        self.contain(made)

    def append(self) -> None:
        item = self.pop()
        self.extend(self.top(), [item])

    def appends(self) -> None:
        items = self.pop_to_mark()
        self.extend(self.top(), items)

    def setitem(self) -> None:
        value = self.pop()
        key = self.pop()
        self.set_items(self.top(), [key, value])

    def setitems(self) -> None:
        items = self.pop_to_mark()
        self.set_items(self.top(), items)

    def global_line(self) -> None:
        module, name = (self.cursor.line(MAX_GLOBAL_NAME) for _ in range(2))
        try:
            self.find(module.decode("utf-8"), name.decode("utf-8"))
        except UnicodeDecodeError:
            raise self.error("a global's name that is no UTF-8") from None

    def global_stack(self) -> None:
        name = self.pop()
        self.find(self.pop(), name)

    def reduce(self) -> None:
        args = self.pop()
        self.call(self.pop(), args)

    def newobj(self) -> None:
        args = self.pop()
        kind = self.pop()
        if type(kind) is not Global or not kind.new:
            what = kind.full if type(kind) is Global else short(kind)
            raise self.error(f"it makes an object of {what}; only data are read")
        self.call(kind, args)

    def build(self) -> None:
        state = self.pop()
        target = self.top()
        if type(target) is OrderedDict:
            # What PyTorch attaches to a state dict: versions of its modules, which nobody needs.
            if type(state) is not dict or state.keys() != {"_metadata"}:
                raise self.error("it sets attributes of a dict")
        elif isinstance(target, Built):
            self.charge(state)
            target.build(self, state)
        else:
            raise self.error(f"it sets attributes of {short(target)}; only data are read")

    def persid_line(self) -> None:
        self.identify(self.line())

    def persid(self) -> None:
        self.identify(self.pop())


def _push(value: Any) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


_ACTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.proto,
    b"\x95": _Machine.frame,
    # constants and numbers
    b"N": _push(None),
    b"\x88": _push(True),
    b"\x89": _push(False),
    b"I": _Machine.int_line,
    b"L": _Machine.long_line,
    b"F": _Machine.float_line,
    b"J": lambda m: m.integer(4),
    b"K": lambda m: m.stack.append(m.number(1)),
    b"M": lambda m: m.stack.append(m.number(2)),
    b"\x8a": lambda m: m.integer(m.number(1)),
    b"\x8b": _Machine.long4,
    b"G": _Machine.float8,
    # texts and bytes
    b"X": lambda m: m.text(m.number(4)),
    b"\x8c": lambda m: m.text(m.number(1)),
    b"\x8d": lambda m: m.text(m.number(8)),
    b"V": _Machine.unicode_line,
    b"U": lambda m: m.old_text(m.number(1)),
    b"T": _Machine.binstring,
    b"B": lambda m: m.stack.append(m.cursor.read(m.number(4))),
    b"C": lambda m: m.stack.append(m.cursor.read(m.number(1))),
    b"\x8e": lambda m: m.stack.append(m.cursor.read(m.number(8))),
    b"\x96": lambda m: m.contain(bytearray(m.cursor.read(m.number(8)))),
    # containers
    b"(": _push(_MARK),
    b")": _push(()),
    b"]": lambda m: m.contain([]),
    b"}": lambda m: m.contain({}),
    b"t": lambda m: m.contain(tuple(m.pop_to_mark())),
    b"\x85": lambda m: m.make_tuple(1),
    b"\x86": lambda m: m.make_tuple(2),
    b"\x87": lambda m: m.make_tuple(3),
    b"l": lambda m: m.contain(m.pop_to_mark()),
    b"d": _Machine.make_dict,
    b"a": _Machine.append,
    b"e": _Machine.appends,
    b"s": _Machine.setitem,
    b"u": _Machine.setitems,
    # the stack and the memo
    b"0": _Machine.pop_top,
    b"1": _Machine.pop_mark,
    b"2": lambda m: m.stack.append(m.top()),
    b"p": lambda m: m.put(m.decimal(m.line())),
    b"q": lambda m: m.put(m.number(1)),
    b"r": lambda m: m.put(m.number(4)),
    b"\x94": lambda m: m.put(len(m.memo)),
    b"g": lambda m: m.get(m.decimal(m.line())),
    b"h": lambda m: m.get(m.number(1)),
    b"j": lambda m: m.get(m.number(4)),
    # names of the list, and what stands outside
    b"c": _Machine.global_line,
    b"\x93": _Machine.global_stack,
    b"R": _Machine.reduce,
    b"\x81": _Machine.newobj,
    b"b": _Machine.build,
    b"P": _Machine.persid_line,
    b"Q": _Machine.persid,
}

_SET = "has a set, which numgrad does not read; make it a list, and save"
_REFUSED = {
    b"i": "makes an object of a class (INST); only data are read",
    b"o": "makes an object of a class (OBJ); only data are read",
    b"\x92": "makes an object of a class (NEWOBJ_EX); only data are read",
    b"\x82": "refers to a registered extension (EXT1); only data are read",
    b"\x83": "refers to a registered extension (EXT2); only data are read",
    b"\x84": "refers to a registered extension (EXT4); only data are read",
    b"S": "has a text in quotes (STRING), which no torch.save wrote",
    b"\x8f": _SET,
    b"\x90": _SET,
    b"\x91": _SET,
    b"\x97": "refers to a buffer outside of the pickle (NEXT_BUFFER)",
    b"\x98": "refers to a buffer outside of the pickle (READONLY_BUFFER)",
}
