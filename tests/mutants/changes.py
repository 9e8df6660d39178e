"""Small changes of a source file, one at a time: those of mutmut in Python, ours in Lua."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import libcst as cst
from mutmut.mutation import mutators
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.mutation.pragma_handling import IgnoredCode

NOT_CHANGED = {"cast", "TypeVar", "print", "warn", "overload", "getLogger"}
LOGS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
DECLARATIONS = {"usedforsecurity", "strict", "encoding", "stacklevel"}
AT_IMPORT = (cst.BaseNumber, cst.ComparisonTarget, cst.BooleanOperation, cst.BinaryOperation)


@dataclass
class Change:
    """A change of a file. `text` makes the file's new text, or returns None if it is none."""

    path: Path
    key: str
    text: Callable[[], str | None]

    def rank(self, seed: str) -> bytes:
        """Return its place in the sample of a seed, which no change of other code moves."""
        return sha256(f"{seed} {self.path} {self.key}".encode()).digest()


def _name(node: cst.CSTNode) -> str:
    function = node.func if isinstance(node, cst.Call) else node
    last = function.attr if isinstance(function, cst.Attribute) else function
    return last.value if isinstance(last, cst.Name) else ""


def _is_text(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.FormattedString | cst.ConcatenatedString) or (
        isinstance(node, cst.SimpleString) and (" " in node.value or "%" in node.value)
    )


def _is_sentence(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.FormattedString) and any(
        isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts
    )


def _string(node: cst.SimpleString) -> Iterator[cst.CSTNode]:
    """Change a string that is no message and no SQL, but for its case."""
    if not _is_text(node):
        yield from list(mutators.operator_string(node))[:1]


def _argument(node: cst.Call) -> Iterator[cst.CSTNode]:
    if not any(_is_text(argument.value) for argument in node.args):
        declared = [argument for argument in node.args if _declares(argument)]
        for changed in mutators.operator_arg_removal(node):
            if all(any(each is kept for kept in changed.args) for each in declared):
                yield changed


def _declares(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Arg) and bool(node.keyword) and node.keyword.value in DECLARATIONS


def _dropped(node: cst.Expr) -> Iterator[cst.CSTNode]:
    value = node.value.expression if isinstance(node.value, cst.Await) else node.value
    if isinstance(value, cst.Call):
        yield cst.Pass()


OURS = {mutators.operator_string: _string, mutators.operator_arg_removal: _argument}
OPERATORS = [(kind, OURS.get(change, change)) for kind, change in mutators.mutation_operators]
OPERATORS.append((cst.Expr, _dropped))


class _Finder(MutationVisitor):
    """Those of decorated functions, too, but none in a message, a log line or a declaration."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef):
            names = {_name(each.decorator) for each in node.decorators}
            return bool(names & NOT_CHANGED) or node.name.value == "__repr__"
        if isinstance(node, cst.Call):
            logs = _name(node) in LOGS and "log" in cst.Module([]).code_for_node(node.func).lower()
            if logs or _name(node) in NOT_CHANGED:
                return True
        if isinstance(node, cst.Raise) or _declares(node) or _is_sentence(node):
            return True
        return super()._skip_node_and_children(node)


def of_python(path: Path) -> Iterator[Change]:
    """Yield the changes of a module: in its functions, and of numbers and operators outside."""
    wrapper = cst.MetadataWrapper(cst.parse_module(path.read_text(encoding="utf-8")))
    finder = _Finder(OPERATORS, IgnoredCode(set(), set(), set()))
    module, times = wrapper.visit(finder), Counter()
    for found in finder.mutations:
        old, new, around = (
            found.original_node,
            found.mutated_node,
            found.contained_by_top_level_function,
        )
        inside = isinstance(around, cst.FunctionDef)
        if inside or isinstance(old, AT_IMPORT):
            codes = map(module.code_for_node, (old, new))
            key = f"{around.name.value if inside else ''} {' -> '.join(codes)}"
            times[key] += 1
            yield Change(path, f"{key} {times[key]}", lambda o=old, n=new: _python(module, o, n))


def _python(module: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> str | None:
    text = module.deep_replace(old, new).code
    try:
        same = ast.dump(ast.parse(text)) == ast.dump(ast.parse(module.code))
    except SyntaxError:
        return None
    return None if same else text


_SWAPS = [
    *("== ~=", "~= ==", "< <=", "<= <", "> >=", ">= >"),
    *("+ -", "- +", "* +", "/ *", "and or", "or and"),
]
LUA = [(rf" {re.escape(old)} ", f" {new} ") for old, new in map(str.split, _SWAPS)] + [
    (r"\bnot (?=\w)", ""),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"(?<![\w.'\"\[])(\d+)(?![\w.'\"])", lambda number: str(int(number[1]) + 1)),
    (r"^\s*[\w.]+\(.*\)$", ""),
    (r"(?<=then )[\w.]+\(.*\)(?= end)", ""),
    (r"(?<=if ).+(?= then)", "true"),
    (r"(?<=if ).+(?= then)", "false"),
]


def of_lua(path: Path, compiles: Callable[[str], bool]) -> Iterator[Change]:
    """Yield the changes of a script, each of one line; `compiles` says whether it is one."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines):
        code, comment, rest = line.rstrip("\n").partition("--")
        if "error_reply" in code:
            continue
        for pattern, new in LUA:
            for found in re.finditer(pattern, code):
                put = new if isinstance(new, str) else new(found)
                changed = f"{code[: found.start()]}{put}{code[found.end() :]}{comment}{rest}\n"

                def text(number: int = number, changed: str = changed) -> str | None:
                    made = "".join([*lines[:number], changed, *lines[number + 1 :]])
                    return made if compiles(made) else None

                yield Change(path, f"{number} {line.strip()} -> {changed.strip()}", text)
