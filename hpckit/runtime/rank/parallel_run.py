"""The part of `Run` that is about parallelism: this rank's place, its data, and its models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpckit.errors import UsageError
from hpckit.model.launch import Checkpoint
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.reduction_tree import compute_whole_group_batch_share
from hpckit.model.parallel.settings import BatchRule, Parallel, Reduction
from hpckit.model.parallel.share import BatchShare, compute_batch_share
from hpckit.model.rank import RankInfo
from hpckit.runtime.parallel import arguments
from hpckit.runtime.parallel.arguments import LossFunction
from hpckit.runtime.rank.parameters import has_sharded_parameters
from hpckit.values import dataclass, field

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from hpckit.runtime.checkpoint.initial_weights import FirstWeights
    from hpckit.runtime.parallel.models import ParallelModels


@dataclass(slots=True, kw_only=True, repr=False)
class ParallelRun:
    """One rank of a run and what it has of data and models.

    `layout` has the sizes of all axes of parallelism; `parallel` how models are laid out on them.
    `full_layout` is the layout that was asked for, if it has other replicas.
    """

    info: RankInfo
    device: torch.device
    seed: int = 0
    layout: Layout = field(default_factory=Layout)
    parallel: Parallel = field(default_factory=Parallel)
    full_layout: Layout | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    _made: ParallelModels | None = None
    _weights: FirstWeights | None = None
    _pairs: list[tuple[str, str]] = field(default_factory=list)
    """The names of tied parameters, as plans have them."""
    _tied: MutableMapping[nn.Module, Mapping[str, str]] = field(default_factory=WeakKeyDictionary)
    """By model, the parameters that are one with another, and which: a checkpoint has each once."""
    _means: int = 0

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self.info.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.info.world_size

    @property
    def local_rank(self) -> int:
        """Number of this rank on its node, from 0."""
        return self.info.local_rank

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes everything that is written only once."""
        return self.info.rank == 0

    @property
    def data_rank(self) -> int:
        """Which part of each batch this rank works on; seed and share out data by it.

        Ranks that hold parts of one model (tensor, context, pipeline) have the same.
        """
        return self.layout.data_rank(self.rank)

    @property
    def data_size(self) -> int:
        """Number of parts that each batch is cut into."""
        return self.layout.data_size

    @property
    def full_data_size(self) -> int:
        """Number of data ranks that were asked for; `data_size` is how many there are now."""
        return (self.full_layout or self.layout).data_size

    @property
    def batch_fraction(self) -> Fraction:
        """Which part of a batch as it was asked for each step has now (`parallel.batch`)."""
        if self.parallel.batch is BatchRule.keep:
            return Fraction(1)
        return Fraction(self.data_size, self.full_data_size)

    def share(self, batch_size: int) -> BatchShare:
        """Return this rank's share of a batch of all ranks; use it as `inputs[share.rows]`.

        Shares differ by one row at most; `share.weight` is the part of the whole batch. With
        `parallel.batch=scale` the whole batch is `share.batch_size` rows, which follow from the
        replicas that are left. With `parallel.reduce=tree` shares are whole groups of rows, and may
        differ by one group. Raises UsageError if there is less than a row, or a group, for each
        data rank, or this is no whole number.
        """
        batch_size = arguments.check_batch_size(batch_size)
        if self.parallel.batch is BatchRule.scale:
            if batch_size % self.full_data_size:
                raise UsageError(
                    f"a batch of {batch_size} rows cannot be divided evenly over "
                    f"{self.full_data_size} data ranks, so parallel.batch=scale cannot scale it",
                    hint=f"take a multiple of {self.full_data_size}, or parallel.batch=keep",
                )
            batch_size = int(batch_size * self.batch_fraction)
        if self.parallel.reduce is Reduction.tree:
            full = self.full_data_size
            return compute_whole_group_batch_share(batch_size, self.data_rank, self.data_size, full)
        if batch_size < self.data_size:
            raise UsageError(
                f"a batch of {batch_size} rows cannot be shared out over {self.data_size} data ranks",
                hint=f"the batch is that of all ranks together: take {self.data_size} or more",
            )
        return compute_batch_share(batch_size, self.data_rank, self.data_size)

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks as torch's DeviceMesh: replicate, pipeline, shard, context, tensor.

        All ranks make it at the same time, when it is first asked for.
        """
        return self._parallel_models.mesh.full_mesh

    def parallelize(
        self,
        build: Callable[[], nn.Module],
        plan: Plan | None = None,
        *,
        init: Callable[[str, nn.Module], None] | None = None,
    ) -> nn.Module:
        """Return this rank's part of the model that `build()` returns, laid out as configured.

        `plan` says by their names which modules repeat and how matrices split; without one, the model can
        only be replicated. `build` is called on the CPU, seeded alike on every rank and in every layout. What
        is returned has the weights of `checkpoint.weights`; register it, and give its parameters to the
        optimizer. With `parallel.pipeline` or `parallel.context`, train it by `train_step` only. Collective.

        With `init`, for models that no host can hold, `build` makes shapes without memory, and
        `init(name, module)` is called for each module of which this rank has a part: it fills the
        module's own parameters and buffers, in place, by torch's own generator, which is seeded by
        the run's seed and the name. `hpckit.reset_parameters` calls the modules' own.

        Raises ConfigError if plan, model and layout do not fit together, UsageError if `init`
        leaves something without a value.

        Example: `model = run.parallelize(lambda: Decoder(config), Plan(units="blocks.*"))`.
        """
        arguments.check_parallelize_arguments(build, plan, init)
        self._pairs += plan.tied if plan else ()
        plan = plan or Plan()
        model = self._parallel_models.build_own_part_of_model(
            arguments.wrap_builder_with_result_check(build), plan, init
        )
        self._tied[model] = {other: first for first, *others in plan.group_tied_names() for other in others}
        self._load_initial_weights(model)
        return model

    def _load_initial_weights(self, model: Any, name: str | None = None) -> None:
        first = self._make_weights_loader_once()
        if first is not None and isinstance(model, nn.Module):
            first.load_into_model(model, name, self._tied)

    def _make_weights_loader_once(self) -> FirstWeights | None:
        if self._weights is None and self.checkpoint.weights is not None:
            # Imported here because runs that keep no state do not need it.
            from hpckit.runtime.checkpoint.initial_weights import make_initial_weights_loader  # noqa: PLC0415

            self._weights = make_initial_weights_loader(self.checkpoint)
        return self._weights

    def train_step(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Any,
        *,
        loss: LossFunction | None = None,
        share: BatchShare | None = None,
    ) -> Tensor:
        """Add the gradients of a batch to those of the model; return its loss, on every rank.

        `inputs` and `targets` are this data rank's rows: [rows, …]. `loss(outputs, targets)` returns a mean
        over rows, or a pair, a sum and its weight, so that the loss of the batch is the sum of all sums over
        that of all weights. Without it, the cross entropy of logits [rows, …, classes] is taken, as a mean
        over all targets of the whole batch but those of -100. It is 0 if nothing has a weight. `share`, from
        `share()`, is needed if data ranks have different numbers of rows. The value, float64, is that of the
        whole batch, and gradients are its; zero them yourself. Collective.

        The first step checks that ranks which share a data rank have the same batch, that gradients agree,
        and that parts of the model compute what the whole does. The first step with each `loss` calls it a
        few times more, to see that it adds up over rows. Raises UsageError and RunError.

        Example: `run.train_step(model, x, y, loss=lambda o, t: ((o - t).abs().sum(), t.numel()))`.
        """
        self._check_batch_types("train_step", model, inputs, targets, loss)
        arguments.check_batch_share_type(share)
        return self._parallel_models.find_training(model).step(inputs, targets, loss, share)

    def evaluate(
        self, model: nn.Module, inputs: Tensor, targets: Any, *, loss: LossFunction | None = None
    ) -> Tensor:
        """Return the loss of this data rank's rows without gradients, in `model.eval()`.

        It is that of `train_step`, of these rows alone. All ranks must call it equally often.
        `mean` averages over data ranks.
        """
        self._check_batch_types("evaluate", model, inputs, targets, loss)
        return self._parallel_models.find_training(model).evaluate(inputs, targets, loss)

    def clip_grad_norm_(self, model: nn.Module, max_norm: float) -> Tensor:
        """Scale gradients so that the 2-norm of the whole model's is at most `max_norm`.

        Returns the norm before. Collective; takes the model, not its parameters. Raises UsageError
        unless `max_norm` is above 0.
        """
        arguments.refuse_non_module("clip_grad_norm_", model)
        return self._parallel_models.find_training(model).clip_gradients(arguments.check_max_norm(max_norm))

    def mean(self, value: float | Tensor) -> float:
        """Return the mean of a number over all ranks, which have to call this together."""
        arguments.check_single_number(value)
        total = torch.as_tensor(value, dtype=torch.float64).detach().to(self.device).clone()
        if self.world_size > 1:  # alone, NCCL would take memory for nothing
            dist.all_reduce(total)
            self._means += 1
        return float(total) / self.world_size

    def _check_batch_types(
        self, call: str, model: Any, inputs: Any, targets: Any, loss: LossFunction | None
    ) -> None:
        arguments.refuse_non_module(call, model)
        staged = self.layout.pipeline > 1
        arguments.check_batch_types(call, inputs, targets, loss, staged=staged)

    def check_layout_in_use(self, registered: Iterable[Any] = ()) -> None:
        """Raise UsageError if a layout was chosen and the code has laid nothing out.

        A registered model with parameters that are sharded is laid out by its own code.
        """
        if self.parallel.reduce is Reduction.tree and self._made is None:
            raise UsageError(
                "parallel.reduce=tree, but this code does not use run.parallelize(): its gradients "
                "would be summed in another order",
                hint="build the model by run.parallelize(build), and train it by run.train_step; "
                "or take parallel.reduce=fast",
            )
        if (
            self.layout.is_data_parallel
            or self._made is not None
            or any(map(has_sharded_parameters, registered))
        ):
            return
        raise UsageError(
            f"the layout is {self.layout}, but this code uses neither run.parallelize() nor "
            "run.mesh: each rank would train the whole model",
            hint="build the model by run.parallelize(build, plan), or choose parallel=none",
        )

    @property
    def _parallel_models(self) -> ParallelModels:
        """What builds models; made, with the mesh, when it is first needed."""
        if self._made is None:
            # Imported here because it takes a second, which runs without it need not wait for.
            from hpckit.runtime.parallel import mesh, models  # noqa: PLC0415

            self._made = models.ParallelModels(
                mesh=mesh.RankMesh(self.layout, self.device, self.rank),
                settings=self.parallel,
                seed=self.seed,
                full_data_size=self.full_data_size,
            )
        return self._made
