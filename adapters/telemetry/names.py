"""Every name that leaves this process in a span, a metric or a log line: pinned here, used from here, nowhere typed twice.

`gen_ai.*` and `error.type` are those of the OpenTelemetry semantic conventions for generative AI, as of release 1.38
(https://opentelemetry.io/docs/specs/semconv/gen-ai/). They are in development there, so they are written out here
and not imported: an upgrade of a library renames nothing on a dashboard.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "toolfleet"  # the instrumentation scope of all spans

# -- spans --------------------------------------------------------------------------------------------------------------

SUBMIT: Final = "submit"
DECIDE: Final = "decide"
CHAT: Final = "chat"  # the span is called "chat {model}"
EXECUTE_TOOL: Final = "execute_tool"  # "execute_tool {tool}"
ANSWER_CALL: Final = "answer_call"  # a call that was answered without being run
MERGE: Final = "merge"

# -- attributes: semantic conventions --------------------------------------------------------------------------------------

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_VERSION: Final = "gen_ai.agent.version"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
TEMPERATURE: Final = "gen_ai.request.temperature"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
ERROR_TYPE: Final = "error.type"

# Content: exported only where TOOLFLEET_TRACE_CONTENT=on.
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
CONTENT: Final = frozenset(
    {INPUT_MESSAGES, OUTPUT_MESSAGES, SYSTEM_INSTRUCTIONS, TOOL_ARGUMENTS, TOOL_RESULT}
)

# -- attributes: ours (the facts of a step row) ------------------------------------------------------------------------------

RUN: Final = "toolfleet.run.id"
RUN_STATUS: Final = "toolfleet.run.status"  # of the step that ended the run
RUN_REASON: Final = "toolfleet.run.reason"
TENANT: Final = "toolfleet.tenant"
CORRELATION: Final = "toolfleet.correlation_id"
TURN: Final = "toolfleet.turn"
PROMPT_VERSION: Final = "toolfleet.prompt_version"
TOOLSET_VERSION: Final = "toolfleet.toolset_version"
TOOL_CHOICE: Final = "toolfleet.tool_choice"
PARALLEL: Final = "toolfleet.parallel_tool_calls"
ALLOWED_TOOLS: Final = "toolfleet.allowed_tools"
RULES: Final = "toolfleet.rules"  # which rules of the agent had a say
EXCLUDED_TOOLS: Final = "toolfleet.excluded_tools"  # tool=reason
TOOL_BAND: Final = "toolfleet.tool_band"
DROPPED_ITEMS: Final = "toolfleet.context.dropped_items"
CALLS: Final = "toolfleet.calls"
RESULTS: Final = "toolfleet.results"
ATTEMPT: Final = "toolfleet.attempt"
TIER: Final = "toolfleet.tier"
EFFECT: Final = "toolfleet.effect"
OUTCOME: Final = "toolfleet.outcome"
REASON: Final = "toolfleet.reason"
COST_USD: Final = "toolfleet.cost_usd"
QUEUE_S: Final = "toolfleet.queue_s"
MODEL_S: Final = "toolfleet.model_s"
TOOL_S: Final = "toolfleet.tool_s"
WAIT_S: Final = "toolfleet.wait_s"  # until the next try
REPAIRED: Final = "toolfleet.repaired"
# Of a finished run, on the span of the step that ended it.
RUN_MODEL_CALLS: Final = "toolfleet.run.model_calls"
RUN_TOOL_CALLS: Final = "toolfleet.run.tool_calls"
RUN_CORRECTIONS: Final = "toolfleet.run.corrections"
RUN_INPUT_TOKENS: Final = "toolfleet.run.input_tokens"
RUN_OUTPUT_TOKENS: Final = "toolfleet.run.output_tokens"
RUN_COST_USD: Final = "toolfleet.run.cost_usd"
RUN_QUEUE_S: Final = "toolfleet.run.queue_s"
RUN_MODEL_S: Final = "toolfleet.run.model_s"
RUN_TOOL_S: Final = "toolfleet.run.tool_s"

# Outcomes of a span that are no outcomes of a step.
MISSED: Final = "missed"  # somebody was faster; nothing of it was stored
ABANDONED: Final = "abandoned"  # the process stopped, or lost its lease, before there was an outcome
RETRY_DUE: Final = "retry_due"
RECONCILING: Final = "reconciling"

# -- fields of log lines -------------------------------------------------------------------------------------------------

LOG_RUN: Final = "run_id"
LOG_TURN: Final = "turn"
LOG_CALL: Final = "call_id"
LOG_TRACE: Final = "trace_id"
LOG_SPAN: Final = "span_id"

# -- metrics: name and help (no ids in labels, ever) -----------------------------------------------------------------------

M_QUEUE_ROWS: Final = ("toolfleet_queue_rows", "Outstanding steps of a queue, in the database")
M_QUEUE_LEASED: Final = ("toolfleet_queue_leased", "Of them, those some worker holds")
M_QUEUE_OLDEST: Final = ("toolfleet_queue_oldest_seconds", "Age of the oldest step nobody holds")
M_IN_FLIGHT: Final = ("toolfleet_in_flight", "Messages of a queue this worker is working on")
M_SLOTS: Final = ("toolfleet_slots", "Messages of a queue this worker may work on at a time")
M_TAKEN: Final = ("toolfleet_messages_taken", "Messages fetched from the broker")
M_SETTLED: Final = ("toolfleet_messages_settled", "Messages the broker was told to be done with")
M_DROPPED: Final = ("toolfleet_messages_dropped", "Messages that found no work: repeated, late, overtaken")
M_ACCEPTED: Final = ("toolfleet_runs_accepted", "Runs accepted by this process")
M_FINISHED: Final = ("toolfleet_runs_finished", "Runs that ended, by status")
M_DECISIONS: Final = ("toolfleet_decisions", "Decision steps stored, by outcome")
M_CALLS: Final = ("toolfleet_calls", "Calls that reached their outcome")
M_RETRIES: Final = ("toolfleet_retries", "Steps that are tried again: decide or call")
M_DEATHS: Final = ("toolfleet_deaths", "Leases that ran out and children that died, by queue")
M_DEAD: Final = ("toolfleet_dead_letters", "Steps given up, by queue")
M_MERGES: Final = ("toolfleet_merges", "Turns whose results were merged")
M_TOKENS: Final = ("toolfleet_model_tokens", "Tokens of model calls, by kind")
M_COST: Final = ("toolfleet_model_cost_usd", "US dollars of model calls")
M_SECONDS: Final = ("toolfleet_step_seconds", "Seconds of a step, by part: queue, model, tool, wait")
M_SPANS_EXPORTED: Final = ("toolfleet_spans_exported", "Spans the collector took")
M_SPANS_DROPPED: Final = ("toolfleet_spans_dropped", "Spans given up: queue_full, export_failed, at_stop")
