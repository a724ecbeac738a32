"""JSON schemas for tests: those that can be kept, and those that are refused with the path."""

from __future__ import annotations

from typing import Any

SCHEMAS: dict[str, Any] = {
    "true": True,
    "propnames": {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "minProperties": 1},
    "propnames2": {"type": "object", "propertyNames": {"maxLength": 2}, "minProperties": 1},
    "patprops": {
        "type": "object",
        "patternProperties": {"^x_[a-z]+$": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 1,
    },
    "minprops": {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "integer"},
            "c": {"type": "integer"},
        },
        "minProperties": 2,
        "maxProperties": 2,
        "additionalProperties": False,
    },
    "mult": {"type": "integer", "multipleOf": 7},
    "intrange": {"type": "integer", "minimum": -3, "maximum": 12},
    "exrange": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "numrange": {"type": "number", "minimum": 0.25, "maximum": 1.5},
    "numex": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "intrange1": {"type": "integer", "minimum": 10},
    "nummin": {"type": "number", "minimum": -2.5},
    "notype_min": {"minimum": 5},
    "notype_props": {"properties": {"a": {"type": "integer"}}},
    "notype_len": {"minLength": 3, "maxLength": 4},
    "notype_req": {"required": ["a"]},
    "notype_items": {"items": {"type": "integer"}},
    "strlen": {"type": "string", "minLength": 3, "maxLength": 5},
    "pat": {"type": "string", "pattern": "^[a-z]{2,4}-\\d+$"},
    "pat_un": {"type": "string", "pattern": "[a-z]"},
    "pat_half": {"type": "string", "pattern": "^ab"},
    "pat_alt": {"type": "string", "pattern": "^a$|^b$"},
    "pat_alt2": {"type": "string", "pattern": "^(a|b)c?$"},
    "pat_quote": {"type": "string", "pattern": "^[^a]{3}$"},
    "pat_dot": {"type": "string", "pattern": "^.{3}$"},
    "fmt": {"type": "string", "format": "date"},
    "fmt2": {"type": "string", "format": "date-time"},
    "fmt3": {"type": "string", "format": "ipv4"},
    "fmt4": {"type": "string", "format": "email"},
    "fmt5": {"type": "string", "format": "uuid"},
    "fmt6": {"type": "string", "format": "madeup"},
    "fmt7": {"type": "string", "format": "uri"},
    "fmt8": {"type": "string", "format": "time"},
    "fmt9": {"type": "string", "format": "hostname"},
    "fmt10": {"type": "string", "format": "ipv6"},
    "fmt11": {"type": "string", "format": "date", "pattern": "^1"},
    "fmt12": {"type": "string", "format": "date", "maxLength": 3},
    "fmt13": {"type": "string", "format": "duration"},
    "fmt14": {"type": "string", "format": "regex"},
    "enum": {"enum": ["a", 1, None, {"b": [1]}, 'q"x', 1.5]},
    "const": {"const": {"a": [1, "é"]}},
    "enum_type": {"type": "string", "enum": ["a", 1]},
    "types": {"type": ["string", "null"]},
    "types2": {
        "type": ["object", "integer"],
        "minimum": 3,
        "required": ["a"],
        "properties": {"a": {"type": "null"}},
    },
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    "anyOf_sib": {"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": -3}]},
    "anyOf_props": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "anyOf": [{"required": ["b"]}, {"required": ["c"]}],
    },
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "allOf1": {"allOf": [{"type": "integer"}]},
    "allOf2": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]},
        ]
    },
    "allOf3": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    "allOf5": {"type": "string", "allOf": [{"minLength": 2}, {"maxLength": 3}]},
    "allOf_ref": {
        "$defs": {
            "p": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        },
        "allOf": [
            {"$ref": "#/$defs/p"},
            {"properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
    },
    "prefix": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "null"}],
        "items": False,
    },
    "prefix2": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "null"}],
        "items": {"type": "boolean"},
        "minItems": 3,
    },
    "prefix3": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}]},
    "arr": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    "uneval": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "unevaluatedProperties": False,
    },
    "unevalItems": {
        "type": "array",
        "prefixItems": [{"type": "integer"}],
        "unevaluatedItems": False,
    },
    "ref": {
        "$defs": {
            "n": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]},
                },
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/n",
    },
    "ref_sib": {
        "$defs": {"n": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/$defs/n", "minimum": 5}},
        "required": ["a"],
        "type": "object",
    },
    "ref_self": {
        "type": "object",
        "properties": {"c": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["c"],
        "additionalProperties": False,
    },
    "ref_def": {"definitions": {"a b": {"type": "integer"}}, "$ref": "#/definitions/a%20b"},
    "ref_ptr": {
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
        "type": "object",
    },
    "req_extra": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["zz"]},
    "order": {
        "type": "object",
        "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}},
        "required": ["a", "b"],
    },
    "prop_false": {"type": "object", "properties": {"a": False, "b": {"type": "null"}}},
    "emptyobj": {"type": "object", "properties": {}, "additionalProperties": False},
    "empty": {},
    "intmin_f": {"type": "integer", "minimum": 1.5, "maximum": 2.5},
    "contentenc": {"type": "string", "contentEncoding": "base64"},
    "null": {"type": "null"},
    "nullable": {"type": "string", "nullable": True},
    "key_esc": {
        "type": "object",
        "properties": {'a"\\\n': {"type": "null"}},
        "required": ['a"\\\n'],
        "additionalProperties": False,
    },
    "nestedanyof": {
        "type": "object",
        "properties": {
            "a": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"k": {"const": "x"}, "v": {"type": "integer"}},
                        "required": ["k", "v"],
                    },
                    {
                        "type": "object",
                        "properties": {"k": {"const": "y"}, "w": {"type": "string"}},
                        "required": ["k", "w"],
                    },
                ]
            }
        },
        "required": ["a"],
    },
    "maxP_open": {"type": "object", "maxProperties": 1},
    "addl_dup": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
    },
}

REFUSED: dict[str, tuple[Any, str]] = {
    "two_patterns": (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}, "^ab": {"maximum": 2}},
            "additionalProperties": False,
        },
        "grammar.patternProperties",
    ),
    "items_of_another_part": (
        {"allOf": [{"prefixItems": [{"minimum": 3}]}], "items": {"minimum": 5}},
        "grammar.allOf.0",
    ),
    "unevaluated_part": (
        {"allOf": [{"properties": {"foo": True}}, {"unevaluatedProperties": False}]},
        "grammar.allOf.1",
    ),
    "unevaluated_part_of_parts": (
        {"allOf": [{"unevaluatedProperties": False, "anyOf": [{"required": ["a"]}]}]},
        "grammar.allOf.0.unevaluatedProperties",
    ),
    "ref_beside_id": (
        {
            "$defs": {"a": {"$id": "http://x/a", "$ref": "#/$defs/b"}, "b": {"type": "null"}},
            "properties": {"x": {"$ref": "#/$defs/a"}},
        },
        "grammar.properties.x.$ref",
    ),
    "names_false": ({"propertyNames": False}, "grammar.propertyNames"),
    "false": (False, "grammar"),
    "not": ({"not": {"type": "string"}}, "grammar.not"),
    "not2": ({"type": "integer", "not": {"minimum": 3}}, "grammar.not"),
    "contains": (
        {"type": "array", "contains": {"const": 7}, "items": {"type": "integer"}},
        "grammar.contains",
    ),
    "if": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "if": {"required": ["a"]},
            "then": {"required": ["b"]},
        },
        "grammar.if",
    ),
    "depreq": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "dependentRequired": {"a": ["b"]},
        },
        "grammar.dependentRequired",
    ),
    "depsch": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "dependentSchemas": {"a": {"required": ["b"]}},
        },
        "grammar.dependentSchemas",
    ),
    "patprops+props": (
        {
            "type": "object",
            "properties": {"x_a": {"type": "integer"}, "q": {"type": "null"}},
            "patternProperties": {"^x_": {"type": "integer"}},
            "additionalProperties": False,
            "minProperties": 1,
            "required": ["q"],
        },
        "grammar.properties.x_a",
    ),
    "patprops_open": (
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "minProperties": 2},
        "grammar.patternProperties",
    ),
    "addl_schema": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "additionalProperties": {"type": "boolean"},
            "minProperties": 2,
        },
        "grammar.minProperties",
    ),
    "mult2": ({"type": "number", "multipleOf": 0.5}, "grammar.multipleOf"),
    "pat_len": ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, "grammar.pattern"),
    "pat_q": ({"type": "string", "pattern": '^"\\\\x$'}, "grammar.pattern"),
    "const_type": ({"type": "string", "const": 1}, "grammar.const"),
    "oneOf_over": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "grammar.oneOf"),
    "oneOf_over2": (
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]},
        "grammar.oneOf",
    ),
    "allOf4": ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "grammar.allOf.1.type"),
    "allOf_pat": (
        {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}]},
        "grammar.allOf.1.pattern",
    ),
    "items_arr": (
        {"type": "array", "items": [{"type": "integer"}, {"type": "null"}], "minItems": 2},
        "grammar.items",
    ),
    "ref_bad": ({"$ref": "#/$defs/zz"}, "grammar.$ref"),
    "ref_anchor": (
        {"$defs": {"a": {"$anchor": "x", "type": "integer"}}, "$ref": "#x"},
        "grammar.$ref",
    ),
    "ref_remote": ({"$ref": "http://x/y"}, "grammar.$ref"),
    "dynref": ({"$dynamicRef": "#x"}, "grammar.$dynamicRef"),
    "req_miss": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["zz"],
            "additionalProperties": False,
        },
        "grammar.required",
    ),
    "req_false": (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "grammar.properties.a",
    ),
    "intimp": ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "grammar"),
    "numimp": ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "grammar"),
    "lenimp": ({"type": "string", "minLength": 4, "maxLength": 2}, "grammar.minLength"),
    "big": ({"type": "integer", "minimum": 100000000000000000000}, "grammar.minimum"),
    "minContains": (
        {
            "type": "array",
            "items": {"type": "integer"},
            "contains": {"minimum": 5},
            "minContains": 2,
        },
        "grammar.contains",
    ),
    "addlItems": (
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": False, "minItems": 1},
        "grammar.additionalItems",
    ),
    "deps": (
        {
            "type": "object",
            "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
            "dependencies": {"a": ["b"]},
        },
        "grammar.dependencies",
    ),
    "patpropclash": (
        {
            "type": "object",
            "properties": {"ab": {"type": "string"}},
            "patternProperties": {"^a": {"maxLength": 2}},
            "required": ["ab"],
        },
        "grammar.properties.ab",
    ),
    "uniq": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "uniqueItems": True},
        "grammar.uniqueItems",
    ),
    "endless": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "grammar",
    ),
    "deep": (
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "integer", "minimum": "x"}}},
        },
        "grammar.properties.a.items.minimum",
    ),
}
