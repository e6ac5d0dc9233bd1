"""Which tools a model may call at one step, and whether it has to: pure functions of the agent, the run and the step.

`candidates` is what the declared rules leave, `control` what follows for the request and for the gates. Hooks of the
user are called between the two, by the decision worker.
"""

from toolfleet.workers.decision.policy.evaluate import Candidates, Given, candidates, control

__all__ = ["Candidates", "Given", "candidates", "control"]
