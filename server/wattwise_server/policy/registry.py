"""Which policy stands behind which name."""

from wattwise_server.domain import PolicyName
from wattwise_server.policy.base import Policy
from wattwise_server.policy.gts import Gts
from wattwise_server.policy.pruning_gts import PruningGts

POLICIES: dict[PolicyName, Policy] = {PolicyName.PRUNING_GTS: PruningGts(), PolicyName.GTS: Gts()}
