"""YAML text to plain values: the line of every key, environment references filled in, nothing that can blow up.

The text is composed to PyYAML's node tree, which knows lines and columns, and walked here into dicts, lists and
scalars by the rules of YAML 1.2's core schema (`8:30` and `on` are text, as people expect). A reference such as
`${NAME}` holds braces, which a flow mapping (`{key: ${NAME}}`) would misread, so each one is replaced before parsing
by a stand-in of the same length made of private-use characters, and filled in afterwards in the scalar it landed in:
an environment value can never add keys or change the shape of the document, and columns stay right.

What a hostile or broken file can do is bounded: size of the text, depth of nesting, and the number of values after
aliases are expanded (a few nested aliases can stand for billions of values).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 40
MAX_VALUES: Final = 100_000

Path = tuple[str | int, ...]

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}\n]*))?\}|\$\{[^}\n]*\}?")
# Stand-ins: an opening mark, one character that numbers the reference, and filling up to the length of the source.
_OPEN, _FILL, _FIRST, _LAST = "\ue000", "\ue001", 0xE010, 0xF8FF
_STAND_IN = re.compile(f"{_OPEN}([\ue010-\uf8ff]){_FILL}*")
_PRIVATE = re.compile("[\ue000-\uf8ff]")
_LONGEST_NUMBER = 40  # characters; more digits than that are no setting
_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,2})?")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TAG = "tag:yaml.org,2002:"
_TYPED = frozenset(_TAG + name for name in ("null", "bool", "int", "float"))
_KNOWN = _TYPED | {_TAG + name for name in ("str", "timestamp", "value", "merge", "map", "seq")}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands. `source` is what the file says when that names the environment, else None."""

    line: int
    column: int
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with the text itself."""

    path: Path
    place: Place
    message: str


@dataclass(slots=True)
class Tree:
    """The values of a document, where each stands, and what was wrong. With `broken` the values mean nothing."""

    value: Any = None
    places: dict[Path, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    broken: bool = False


def read(text: str, environ: Mapping[str, str]) -> Tree:
    """Parse `text`. Faults of syntax come back alone; faults of single values come back beside the other values."""
    tree = Tree()
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return _give_up(tree, Place(1, 1), f"the file is larger than {MAX_BYTES} bytes")
    private = _PRIVATE.search(text)
    if private is not None:
        line = text.count("\n", 0, private.start()) + 1
        return _give_up(tree, Place(line, 1), "a character of Unicode's private use area")
    sources: list[re.Match[str]] = []
    if sum(1 for _ in _REFERENCE.finditer(text)) > _LAST - _FIRST:
        return _give_up(tree, Place(1, 1), f"more than {_LAST - _FIRST} references to the environment")

    def stand_in(match: re.Match[str]) -> str:
        sources.append(match)
        return (_OPEN + chr(_FIRST + len(sources) - 1)).ljust(len(match[0]), _FILL)

    try:
        root = _Composer(_REFERENCE.sub(stand_in, text)).get_single_node()
    except yaml.MarkedYAMLError as error:
        return _give_up(tree, _mark(error.problem_mark or error.context_mark), _explain(error, text))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _give_up(tree, Place(line, 1), f"a character that YAML does not allow ({error.character:#06x})")
    except _TooDeep as error:
        return _give_up(tree, error.place, f"nested more than {MAX_DEPTH} levels deep")
    if root is None:
        return _give_up(tree, Place(1, 1), "the file is empty")
    walk = _Walk(tree, sources, environ)
    try:
        tree.value = walk.value(root, ())
    except _TooMany as error:
        return _give_up(tree, error.place, str(error))
    return tree


def _give_up(tree: Tree, place: Place, message: str) -> Tree:
    tree.faults.append(Fault((), place, message))
    tree.broken = True
    return tree


def _mark(mark: Any) -> Place:
    return Place(1, 1) if mark is None else Place(mark.line + 1, mark.column + 1)


def _explain(error: yaml.MarkedYAMLError, text: str) -> str:
    """The parser's complaint in plain words, with a hint for the mistakes people make most."""
    problem = error.problem or str(error)
    mark = error.problem_mark
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and "\t" in lines[mark.line][: mark.column + 1]:
        return "a tab where YAML wants spaces"
    if "expected a single document" in (error.context or ""):
        return "more than one document ('---') in the file"
    return f"not valid YAML: {problem}" + (f" ({error.context})" if error.context else "")


class _TooDeep(Exception):
    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place


class _TooMany(Exception):
    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place


class _Composer(yaml.SafeLoader):
    """Composes nodes and counts the depth, since the composer recurses."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0  # nodes open around the one being composed

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _TooDeep(_mark(self.peek_event().start_mark))  # type: ignore[no-untyped-call]
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Walk:
    """One pass over the node tree."""

    def __init__(self, tree: Tree, sources: list[re.Match[str]], environ: Mapping[str, str]) -> None:
        self._tree = tree
        self._sources = sources
        self._environ = environ
        self._count = 0  # values made so far, each alias counted in full
        self._open: set[int] = set()  # collections being walked: meeting one again is a cycle

    def value(self, node: yaml.Node, path: Path) -> Any:
        place = _mark(node.start_mark)
        self._tree.places.setdefault(path, place)
        if node.tag not in _KNOWN:
            self._fault(path, place, f"the tag {node.tag!r} is not used here")
            return None
        self._enter(node)
        try:
            if isinstance(node, yaml.ScalarNode):
                return self._scalar(node, path, place)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        pairs: dict[str, tuple[Place, yaml.Node]] = {}
        self._collect(node, path, pairs, given=True)
        found: dict[str, Any] = {}
        for key, (place, value_node) in pairs.items():
            here = (*path, key)
            self._tree.places[here] = place
            found[key] = self.value(value_node, here)
        return found

    def _collect(self, node: yaml.Node, path: Path, pairs: dict[str, tuple[Place, yaml.Node]], *, given: bool) -> None:
        """Gather the keys of a mapping: its own first, then those of `<<: *base` that it does not give itself."""
        own: dict[str, int] = {}
        bases: list[yaml.Node] = []
        for key_node, value_node in node.value:
            place = _mark(key_node.start_mark)
            if key_node.tag == _TAG + "merge":
                bases.extend(value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node])
                continue
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
                self._fault(path, place, "a key must be plain text")
                continue
            key = self._restore(key_node.value)
            if key in own and given:
                self._fault((*path, key), place, f"the key is given twice, first on line {own[key]}")
            own.setdefault(key, place.line)
            pairs.setdefault(key, (place, value_node))
        for base in bases:
            if not isinstance(base, yaml.MappingNode):
                self._fault(path, _mark(base.start_mark), "'<<' takes an alias of a mapping")
                continue
            self._enter(base)
            self._collect(base, path, pairs, given=False)
            self._open.discard(id(base))

    def _enter(self, node: yaml.Node) -> None:
        if id(node) in self._open:
            raise _TooMany(_mark(node.start_mark), "an alias that contains itself")
        self._count += 1
        if self._count > MAX_VALUES:
            raise _TooMany(_mark(node.start_mark), f"more than {MAX_VALUES} values once aliases are expanded")
        self._open.add(id(node))

    def _scalar(self, node: yaml.ScalarNode, path: Path, place: Place) -> Any:
        text: str = node.value
        plain = node.style is None
        if _STAND_IN.search(text) is not None:
            source = self._restore(text)
            where = self._tree.places[path]
            if any(self._reference(match)["name"] for match in _STAND_IN.finditer(text)):
                where = Place(where.line, where.column, source)
                self._tree.places[path] = where
            text = _STAND_IN.sub(lambda match: self._fill(match, path, where), text)
            # It stays text (a key of digits is not a number); fields that want a number read it from the text.
            return None if plain and text in _NULLS else text
        if not plain or node.tag not in _TYPED or len(text) > _LONGEST_NUMBER:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        if _FLOAT.fullmatch(text):
            return float(text.replace("_", ""))
        return text

    def _fill(self, match: re.Match[str], path: Path, place: Place) -> str:
        reference = self._reference(match)
        name, default = reference["name"], reference["default"]
        if name is None:
            if reference[0] == "$${":
                return "${"
            self._fault(
                path, place, f"{reference[0]!r} is neither ${{NAME}} nor ${{NAME:-default}}; $${{ is a plain ${{"
            )
            return ""
        value = self._environ.get(name, "")
        if value:
            return value
        if default is not None:
            return str(default)
        state = "empty" if name in self._environ else "not set"
        self._fault(
            path, place, f"the environment variable {name} is {state}; set it, or write ${{{name}:-…}} for a default"
        )
        return ""

    def _reference(self, match: re.Match[str]) -> re.Match[str]:
        return self._sources[ord(match[1]) - _FIRST]

    def _restore(self, text: str) -> str:
        """The text as the file has it."""
        return _STAND_IN.sub(lambda match: self._reference(match)[0], text)

    def _fault(self, path: Path, place: Place, message: str) -> None:
        self._tree.faults.append(Fault(path, place, message))
