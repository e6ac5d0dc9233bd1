"""An airline's customer service desk, run by an agent: 14 tools, their database, and a scripted model.

What runs here is real recorded input: the conversations of `recordings` were held by gpt-4o with tau-bench's
simulated customers. `desk` holds the tools (written for this project from the tool definitions, the policy and the
recorded results), `database` what they change, `model_server` plays the recorded model turns over HTTP and checks
every tool result it is sent, `fanout` adds turns with many calls at once. Nothing in the rest of toolfleet imports
this package.
"""
