"""Strict schemas: what each provider's strict mode takes, and how a tool's own schema gets there and back.

`tool` is the way in. `profiles` holds the providers' facts as data, `convert` (with `values`, `objects`, `kinds` and
`merge`) makes the strict form, `codec` rewrites arguments, `limits` counts, `names` makes aliases.
"""
