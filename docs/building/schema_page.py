"""The page of JSON Schemas, as tables of fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import outside_links
from tables import code, require, table, with_code

HEAD = """\
# Schemas

deep5 writes these documents, and checks each by its [JSON Schema](https://json-schema.org/draft/2020-12). A field is
required unless its type says *optional*. JSON has no infinity and no NaN: the strings `inf`, `-inf` and `nan` stand for
them. Fields whose names end in `_s` are in seconds, in `_bytes` in bytes, in `_mhz` in MHz.

| document | what it describes |
|---|---|
"""
DOCUMENTS: Mapping[str, tuple[str, str]] = {
    "result.json": ("deep5/results/schema.json", "one run, in its result folder"),
    "comparison.json": ("deep5/results/comparison_schema.json", "one comparison, in its result folder"),
    "origin.json": ("deep5/results/origin_schema.json", "where the recipe of a run and your own files were"),
    "pack.json": ("deep5/results/pack_schema.json", "what an archive of `deep5 results pack` holds"),
}
"""By document, the file of its schema and what it describes."""


def fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Each field below an object: its path, its schema, and whether it is required; `[]` is an item, `*` any name."""
    for part in (schema, *schema.get("anyOf", ())):
        for name, about in part.get("properties", {}).items():
            yield name, about, name in part.get("required", ())
            yield from _below(name, about)
        if isinstance(part.get("additionalProperties"), dict):
            yield from _below("*", part["additionalProperties"])


def _below(path: str, about: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    for below, found, required in fields(about):
        yield f"{path}.{below}", found, required
    for part in (about, *about.get("anyOf", ())):
        if isinstance(part.get("items"), dict):
            yield from _below(f"{path}[]", part["items"])


def description(about: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The description of a field, or of the definition to which it refers."""
    said = about.get("description") or ""
    if not said and "$ref" in about:
        said = root["$defs"][_name(about)].get("description", "")
    return str(said)


def pages(root: Path = Path(__file__).parents[2]) -> dict[str, str]:
    """The page; `root` is the repository.

    Raises:
        PluginError: A field without a description.
    """
    rows, parts = [], []
    for document, (file, what) in DOCUMENTS.items():
        schema = json.loads((root / file).read_text(encoding="utf-8"))
        place = outside_links.FILES[file].removeprefix("reference/")
        anchor = document.partition(".")[0]
        rows.append(f"| [`{document}`](#{anchor}) | {what} ([schema]({place})) |")
        parts.append(_document(document, anchor, place, schema))
    return {"reference/schemas.md": HEAD + "\n".join(rows) + "\n\n" + "\n".join(parts)}


def _document(document: str, anchor: str, place: str, schema: Mapping[str, Any]) -> str:
    """The section of a document: its fields, then those of each of its objects and definitions."""
    known = [(path, description(about, schema)) for path, about, _ in fields(schema)]
    definitions = schema.get("$defs", {})
    for name, about in definitions.items():
        known += [(f"{name}.{path}", description(found, schema)) for path, found, _ in fields(about)]
    require(f"fields of {document}", known, "a description in the schema")
    groups: dict[str, list[tuple[str, Mapping[str, Any], bool]]] = {"": []}
    for path, about, required in fields(schema):
        head, _, tail = path.partition(".")
        if tail:
            groups.setdefault(head, []).append((tail, about, required))
        else:
            groups[""].append((path, about, required))
    for name, about in definitions.items():
        if found := list(fields(about)):
            groups[f"${name}"] = found
    targets = {head: f"{anchor}-{head.replace('$', 'type-').removesuffix('[]')}" for head in groups if head}
    sections = [f"## {document} {{ #{anchor} }}\n\n{_sentence(schema)} [Schema]({place}).\n"]
    for head, rows in groups.items():
        if head:
            about = definitions[head[1:]] if head.startswith("$") else dict(_tops(schema))[head]
            title = f"Type {head[1:]}" if head.startswith("$") else head.removesuffix("[]")
            sections.append(f"### {title} {{ #{targets[head]} }}\n\n{_sentence(about)}\n")
        cells = [
            (_linked(path, targets if not head else {}), _type(about, targets, required), _said(about, schema))
            for path, about, required in rows
        ]
        sections.append(table(("field", "type", "meaning"), cells) + "\n")
    return "\n".join(sections)


def _tops(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The fields of the document, also as lists."""
    for name, about in schema["properties"].items():
        yield name, about
        yield f"{name}[]", about


def _sentence(about: Mapping[str, Any]) -> str:
    return with_code(str(about.get("description", "")))


def _name(about: Mapping[str, Any]) -> str:
    return str(about["$ref"]).rpartition("/")[2]


def _linked(path: str, targets: Mapping[str, str]) -> str:
    target = targets.get(path) or targets.get(f"{path}[]")
    return code(path) if target is None else f"[{code(path)}](#{target})"


def _type(about: Mapping[str, Any], targets: Mapping[str, str], required: bool = True) -> str:
    """The type of a field in words."""
    if "$ref" in about:
        name = _name(about)
        found = f"[{name}](#{targets[f'${name}']})" if f"${name}" in targets else _PLAIN.get(name, name)
    elif "anyOf" in about:
        found = " or ".join(_type(part, targets) for part in about["anyOf"])
    elif "const" in about or "enum" in about:
        kinds = {
            "null" if value is None else "string" if isinstance(value, str) else "number" for value in _values(about)
        }
        found = " or ".join(sorted(kinds, key="null".__eq__))
    else:
        names = about.get("type", "any")
        names = [names] if isinstance(names, str) else names
        items = about.get("items")
        listed = f"list of {_type(items, targets)}" if items else "list"
        found = " or ".join(listed if name == "array" else name for name in names)
    return found if required else f"{found}, *optional*"


_PLAIN = {"real": "number", "number": "number", "hash": "string", "time": "string"}
"""Definitions without fields: what they are in JSON."""


def _values(about: Mapping[str, Any]) -> list[Any]:
    return [about["const"]] if "const" in about else list(about["enum"])


def _said(about: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The description of a field, with its values if they are listed."""
    said = with_code(description(about, root))
    if "const" in about or "enum" in about:
        said = f"{said} Allowed: {', '.join(code('null' if value is None else value) for value in _values(about))}."
    return said
