"""The models of a rank that are laid out, each with how it is trained.

Optimizers have to update what is trained, not the parameters that a model had before. Sharding and
cutting matrices put new parameters into a model. An optimizer that was made before has the old
ones, which get no gradients: it would train nothing, without an error.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hpckit.errors import UsageError
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import BatchRule, Parallel
from hpckit.runtime.parallel.batch_checks import (
    ReplacedParameter,
    check_ranks_built_same_values,
    checksum_model,
)
from hpckit.runtime.parallel.batch_pieces import BatchCut
from hpckit.runtime.parallel.build import LaidOutModel, build_model_on_meta, build_seeded_model, lay_out_model
from hpckit.runtime.parallel.initialise import Init, PartInitialiser
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.sharding import needs_fsdp
from hpckit.runtime.parallel.training import ModelTraining
from hpckit.values import dataclass, field


@dataclass(eq=False, slots=True, weakref_slot=True)
class OptimizerCheck:
    """Looks at each optimizer of this process once, before its first step, while this is kept.

    `stages` is the number of ranks over which models are cut into pipeline stages.
    """

    stages: int = 1
    _replaced: list[tuple[str, str, weakref.ref[nn.Parameter]]] = field(default_factory=list)
    _seen: weakref.WeakSet[Optimizer] = field(default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        own = weakref.ref(self)

        def check_before_step(optimizer: Optimizer, *_: Any) -> None:
            check = own()
            if check is not None:
                check.check_optimizer(optimizer)

        handle = register_optimizer_step_pre_hook(check_before_step)
        weakref.finalize(self, handle.remove)

    def add_replaced_parameters(self, replaced: Iterable[ReplacedParameter], model: nn.Module) -> None:
        """Take note of what a model no longer has, since it is laid out."""
        kind = type(model).__name__.removeprefix("FSDP")
        self._replaced += [(state.name, kind, state.earlier) for state in replaced]

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise UsageError if an optimizer has parameters of before, or needs all of a model."""
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        if self.stages > 1 and isinstance(optimizer, LBFGS):
            raise UsageError(
                f"{type(optimizer).__name__} compares all parameters with each other, and with "
                "parallel.pipeline each rank has those of its stages only",
                hint="choose an optimizer that treats each parameter by itself, such as AdamW, or "
                "a layout with parallel.pipeline=1",
            )
        known = {id(one()): (name, kind) for name, kind, one in self._replaced if one() is not None}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in known:
                    name, kind = known[id(parameter)]
                    raise UsageError(
                        f"{type(optimizer).__name__} updates {name} as {kind} had it before "
                        "run.parallelize(), which put another parameter in its place: it would "
                        "train nothing",
                        hint="make the optimizer after it: model = run.parallelize(build, plan); "
                        f"{type(optimizer).__name__}(model.parameters())",
                    )


@dataclass(slots=True, kw_only=True)
class ParallelModels:
    """Builds models on a mesh of ranks, and remembers them while they are in use."""

    mesh: RankMesh
    settings: Parallel
    seed: int
    full_data_size: int
    _known: weakref.WeakKeyDictionary[nn.Module, ModelTraining] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    _optimizers: OptimizerCheck = field(init=False)

    def __post_init__(self) -> None:
        self._optimizers = OptimizerCheck(stages=self.mesh.layout.pipeline)

    def build_own_part_of_model(
        self, build: Callable[[], nn.Module], plan: Plan, init: Init | None
    ) -> nn.Module:
        """Build a model, lay it out, and return this rank's part; collective."""
        if init is None:
            model = build_seeded_model(build, self.seed)
            if not self._ddp_broadcasts_initial_values(model):
                check_ranks_built_same_values(self.mesh, checksum_model(model), whole=True)
            made = lay_out_model(model, plan, self.mesh, self.settings)
            self._optimizers.add_replaced_parameters(made.replaced, made.module)
            return self.remember_model(made)
        model = build_model_on_meta(build, self.seed)
        initialiser = PartInitialiser(
            whole=copy.deepcopy(model),
            init=init,
            seed=self.seed,
            device=self.mesh.device,
            offload=self.settings.offload,
        )
        made = lay_out_model(model, plan, self.mesh, self.settings, initialiser)
        if not self._ddp_broadcasts_initial_values(model):
            check_ranks_built_same_values(self.mesh, initialiser.digests, whole=False)
        return self.remember_model(made)

    def _ddp_broadcasts_initial_values(self, model: nn.Module) -> bool:
        replicated = self.mesh.layout.is_data_parallel and not needs_fsdp(self.settings)
        learns = any(parameter.requires_grad for parameter in model.parameters())
        return self.mesh.layout.world_size == 1 or (replicated and learns)

    def remember_model(self, made: LaidOutModel) -> nn.Module:
        """Remember how a model that is laid out is trained; return this rank's part."""
        scaled = self.settings.batch is BatchRule.scale  # batches are planned for the ranks of now
        cut = BatchCut(
            layout=self.mesh.layout,
            settings=self.settings,
            full_data_size=self.mesh.layout.data_size if scaled else self.full_data_size,
            pipeline=made.pipeline,
            context=made.context,
        )
        self._known[made.module] = ModelTraining(
            model=made,
            mesh=self.mesh,
            settings=self.settings,
            cut=cut,
            is_laid_out=self._is_parameter_of_known_model,
        )
        return made.module

    def _is_parameter_of_known_model(self, parameter: Tensor) -> bool:
        return any(parameter is one for model in self._known for one in model.parameters())

    def find_training(self, model: nn.Module) -> ModelTraining:
        """Return how a model is trained; raises UsageError if it was not built here."""
        found = self._known.get(model)
        if found is None:
            raise UsageError(
                f"this {type(model).__name__} was not made by run.parallelize()",
                hint="model = run.parallelize(build, plan); with a layout of your own, call the "
                "model itself, and run.mean(loss) for the mean over ranks",
            )
        return found
