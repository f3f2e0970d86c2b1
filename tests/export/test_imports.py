"""What a source imports is read from its tree alone."""

from __future__ import annotations

import pytest

from astkit.export.imports import ALL, Import, Uses, read


def imports(source: str, package: str = "") -> list[Import]:
    return read(source, "cell 1", package).imports


def uses(source: str) -> Uses:
    return read(source, "cell 1")


def test_imports_are_found_where_they_are() -> None:
    for source, expected in (
        ("import os.path as p", [("os.path", (), 1, False)]),
        ("import a, b", [("a", (), 1, False), ("b", (), 1, False)]),
        ("from a.b import c, d as e", [("a.b", ("c", "d"), 1, False)]),
        ("import_module('a.b')", [("a.b", (), 1, False)]),
        # within a block it may be absent
        ("def f():\n    import a", [("a", (), 2, True)]),
        ("class C:\n    async def f(self):\n        import a", [("a", (), 3, True)]),
        ("x = importlib.import_module('a')", [("a", (), 1, True)]),
        ("try: import a\nexcept ImportError: import b", [("a", (), 1, True), ("b", (), 2, True)]),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", [("b", (), 4, True)]),
        ("if typing.TYPE_CHECKING:\n    import a", []),
        ("text = 'import a'", []),
    ):
        assert imports(source) == expected, source


def test_relative_imports_are_resolved() -> None:
    for source, module in (
        ("from . import a", "kit.part"),
        ("from .. import a", "kit"),
        ("from .b import a", "kit.part.b"),
        ("from ..b.c import a", "kit.b.c"),
    ):
        assert imports(source, "kit.part") == [(module, ("a",), 1, False)], source


def test_names_taken_from_the_package_are_found() -> None:
    for source, names in (
        ("from astkit import Gate, models", {"Gate", "models"}),
        ("import astkit\nastkit.Gate(0.1)", {"Gate"}),
        ("import astkit as kit\nkit.Gate, kit.Loader", {"Gate", "Loader"}),
        ("import astkit.files\nastkit.Gate", {"Gate"}),
        ("import astkit\ngetattr(astkit, name)", {ALL}),
        ("from astkit.gating import Gate", set()),
        ("import other\nother.Gate", set()),
    ):
        assert uses(source).public == names, source


def test_kinds_of_registered_names_are_found() -> None:
    for source, kinds in (
        ("from astkit.names import resolve\nresolve('score', name)", {"score"}),
        ("from astkit.names import resolve as r\nr('score', r('model', 'x'))", {"score", "model"}),
        ("from astkit.names import resolve\nresolve(kind, name)", {ALL}),
        ("from astkit.names import resolve\nf(resolve)", {ALL}),
        ("from astkit.names import REGISTRIES\nREGISTRIES['model']", {"model"}),
        ("from astkit.names import REGISTRIES\nfor kind in REGISTRIES: ...", {ALL}),
        ("from astkit import names", {ALL}),
        ("import astkit.names", {ALL}),
        ("from astkit.names import REGISTRIES", set()),
        ("from astkit.trainers.autotune import resolve\nresolve(config, scene)", set()),
        ("Path('.').resolve()", set()),
    ):
        assert uses(source).kinds == kinds, source


def test_an_import_by_a_computed_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^cell 1 .* a computed name \(line 2\).*: write"):
        uses("name = 'a'\nimport_module(name)")
