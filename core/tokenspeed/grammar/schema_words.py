"""The keywords of JSON Schema 2020-12: which are kept, about which type, and which are refused.

A keyword that is in none of these lists is no keyword of JSON Schema, and means nothing there.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")
    + ("$comment", "$schema", "$id", "$defs", "definitions", "$anchor", "$vocabulary")
    + ("contentEncoding", "contentMediaType", "contentSchema")
)
NUMBER_WORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
KEYWORDS_OF = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": NUMBER_WORDS,
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
    ),
}
UNSUPPORTED = {
    "not": "say what is allowed instead",
    "if": "use anyOf",
    "then": "use anyOf",
    "else": "use anyOf",
    "contains": "use prefixItems",
    "minContains": "use minItems",
    "maxContains": "use maxItems",
    "dependentRequired": "use anyOf",
    "dependentSchemas": "use anyOf",
    "dependencies": "use anyOf",
    "additionalItems": "use prefixItems and items",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
FORMATS = frozenset(
    ("date", "date-time", "time", "duration", "email", "hostname")
    + ("ipv4", "ipv6", "uuid", "uri", "uri-reference")
)
COMBINERS = ("allOf", "anyOf", "oneOf")
MAX_DEPTH = 100
MAX_INTEGER = 2**63 - 1
