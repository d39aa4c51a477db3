"""What one change is: mutants of a module, by its syntax tree."""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
NAMES = {"min": "max", "minimum": "maximum", "ceil": "floor", "all": "any", "add": "subtract"}
NAMES |= {"zeros": "ones", "zeros_like": "ones_like"}
NAMES |= {new: old for old, new in NAMES.items()}

SYMMETRIC = {"min", "max", "minimum", "maximum"}
MESSAGES = {"require", "require_number", "require_one_of", "require_whole", "InputError"}
"""Functions whose texts are for people; tests need not know them word for word."""

KEYWORDS = {"strict", "description", "examples"}
"""Keywords that are left alone: a check of `zip`, and texts of a field of a file."""

SKIPPED = ast.Assert | ast.Delete | ast.Import | ast.ImportFrom
SKIPPED_FIELDS = "annotation", "returns", "decorator_list", "ctx", "op", "ops"


class Mutant(NamedTuple):
    """A module with one change: what is changed, in which lines, and the module's new text."""

    file: str
    change: str
    lines: range
    source: str


class Scope(NamedTuple):
    """Where a node is.

    Attributes:
        where: The function.
        lines: The lines of the statement.
        bound: What has been assigned in the function.
        returns: The annotation of what the function returns.
        message: Whether texts are for people.
    """

    where: str = ""
    lines: range = range(0)
    bound: frozenset[str] = frozenset()
    returns: str = ""
    message: bool = False


def mutants(file: str, source: str, *, texts: bool = True) -> Iterator[Mutant]:
    """All mutants of a module, each with a change of its own name.

    The new text of each takes most of the time, and is empty unless `texts`.
    """
    tree, seen = ast.parse(source), Counter[str]()
    for node, field, i, new, scope in _changes(tree, Scope()):
        value = getattr(node, field)
        old = value[i] if isinstance(value, list) else value
        before, after = ast.unparse(old), ast.unparse(new)
        if after == before:  # two equal arguments were exchanged
            continue
        change = f"{scope.where}: {before} -> {after}"
        seen[change] += 1
        change += f" ({seen[change]})" * (seen[change] > 1)
        _put(node, field, i, new)
        yield Mutant(file, change, scope.lines, ast.unparse(tree) if texts else "")
        _put(node, field, i, old)


def _put(node: ast.AST, field: str, i: int, child: ast.AST) -> None:
    value = getattr(node, field)
    if isinstance(value, list):
        value[i] = child
    else:
        setattr(node, field, child)


def _changes(node: Any, scope: Scope) -> Iterator[tuple[Any, str, int, ast.AST, Scope]]:
    """Nodes, and what may stand in place of one of their children."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        scope = scope._replace(where=f"{scope.where}.{node.name}".lstrip("."))
    if isinstance(node, ast.FunctionDef):
        names = frozenset(n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg))
        scope = scope._replace(bound=names, returns=ast.unparse(node.returns or ast.Name("None")))
    said = isinstance(node, ast.Call) and _name(node.func) in MESSAGES
    if isinstance(node, ast.JoinedStr | ast.Raise) or said:
        scope = scope._replace(message=True)
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS:
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _skipped(child, scope):
                continue
            if isinstance(child, ast.stmt):
                scope = scope._replace(lines=_lines(child))
            for new in _in_place_of(child, field, scope):
                yield node, field, i, new, scope
            yield from _changes(child, scope)
            if isinstance(child, ast.Assign):
                scope = scope._replace(bound=scope.bound | _bound_by(child.targets))


def _skipped(node: ast.AST, scope: Scope) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    said = scope.message and (text or isinstance(node, ast.JoinedStr))
    keyword = isinstance(node, ast.keyword) and node.arg in KEYWORDS
    names = isinstance(node, ast.Assign) and "__all__" in _bound_by(node.targets)
    return isinstance(node, SKIPPED) or docstring or said or keyword or names


def _lines(statement: Any) -> range:
    """The lines of a statement, without those of its body."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno
    return range(statement.lineno, max(last, statement.lineno) + 1)


def _bound_by(targets: list[Any]) -> frozenset[str]:
    """The names, attributes and items that an assignment sets."""
    nodes = (node for target in targets for node in ast.walk(target))
    return frozenset(ast.unparse(n) for n in nodes if isinstance(getattr(n, "ctx", 0), ast.Store))


def _in_place_of(node: Any, field: str, scope: Scope) -> Iterator[ast.AST]:
    """What a node is changed to, one at a time."""
    if field == "test" and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.stmt):
        yield from _statements(node, scope)
    elif isinstance(node, ast.Constant):
        yield from _constants(node.value)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    else:
        yield from _expressions(node)


def _statements(node: ast.stmt, scope: Scope) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value=ast.Constant(value=None)):
            return
        case ast.Return(value=ast.expr()) if "None" in scope.returns:
            yield ast.Return(ast.Constant(None))
        case ast.Return(value=ast.expr() as value) if scope.returns == "bool":
            yield ast.Return(ast.UnaryOp(ast.Not(), value))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Assign(targets=targets) if _bound_by(targets) <= scope.bound:
            yield ast.Pass()


def _constants(value: object) -> Iterator[ast.AST]:
    match value:
        case bool():
            yield ast.Constant(not value)
        case int():
            yield ast.Constant(value + 1)
        case float():
            yield ast.Constant(2 * value or 1.0)
        case str() if " " not in value:
            yield ast.Constant(f"{value}X")


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    """Without a keyword, with the last two arguments exchanged, and the last argument itself."""
    args, name = node.args, _name(node.func)
    for left_out, fewer in zip(node.keywords, _without_one(node.keywords), strict=True):
        if left_out.arg not in KEYWORDS:
            yield _other(node, keywords=fewer)
    if name in MESSAGES:
        return
    if len(args) > 1 and name not in SYMMETRIC:
        yield _other(node, args=[*args[:-2], args[-1], args[-2]])
    if args and not isinstance(args[-1], ast.Starred | ast.Constant | ast.Lambda):
        yield args[-1]


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]):
            yield from (_other(node, ops=[new()]) for new in COMPARISONS[type(op)])
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield _other(node, op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield _other(node, op=ast.And() if isinstance(op, ast.Or) else ast.Or())
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Dict(keys=keys, values=values):
            for k, v in zip(_without_one(keys), _without_one(values), strict=True):
                yield _other(node, keys=k, values=v)
        case ast.Name(id=name) if name in NAMES:
            yield _other(node, id=NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield _other(node, attr=NAMES[name])


def _name(function: ast.expr) -> str:
    """The name of a function that is called, without its module."""
    return str(getattr(function, "id", getattr(function, "attr", "")))


def _other(node: Any, **fields: Any) -> Any:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _without_one(items: list[Any]) -> list[list[Any]]:
    return [[*items[:i], *items[i + 1 :]] for i in range(len(items))]
