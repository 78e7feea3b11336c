"""What thinwire knows of FSDP2: a module's parameter groups, how their gradients lie in memory, and where to plug in.

All that PyTorch does not document stands here; read in torch 2.13, torch/distributed/fsdp/_fully_shard:
- A group's backward pass ends in FSDPParamGroup.post_backward(), which takes the gradients off the parameters and calls foreach_reduce().
  A group may so be reduced several times in one backward pass (a module that is called twice), once, or not at all.
- What is reduced is flat: [shard ranks, row], where a row holds, for each parameter that has a gradient, its part for that rank, padded along
  its first dimension to the longest (padded_sharded_param_size). Neither a reduce-scatter nor a hook is told which parameters those are.
- What is gathered is flat too, [shard ranks, row], of all parameters. A row is first written into its place of what comm.allocate() returns.
  Before a backward pass the group's state is PRE_BACKWARD, also where it is gathered ahead.
- After the reduce-scatter, HSDP all-reduces over the replicate group, and calls the all-reduce hook after that. Then the result is divided
  by what is left to divide by, converted, and added to what parameters have in .grad, or becomes it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from thinwire._native import ArgumentError, StateError, is_small
from thinwire.torch.model_parameters import own_name


class _ParameterGroup:
    """Parameters of one fully_shard(), under their names in the model."""

    def __init__(self, module: Any, group: Any, parameters: list[Any], names: dict[tuple[int, str], str]):
        """``module``: an FSDPModule of the group."""
        self.module, self._group, self._parameters = module, group, parameters
        self.names = [names[id(parameter._module_info.module), parameter._module_info.param_name] for parameter in parameters]

    @property
    def row_shapes(self) -> list[list[int]]:
        """Of each parameter's part of a row."""
        return [list(parameter.padded_sharded_param_size) for parameter in self._parameters]

    @property
    def shapes(self) -> list[list[int]]:
        """Of whole parameters."""
        return [list(parameter.sharded_param.shape) for parameter in self._parameters]

    @property
    def device(self) -> torch.device:
        """Of what travels, also where the shards are offloaded."""
        return self._group.device

    def small_names(self) -> list[str]:
        """Of what is sent as it is unless a rule says otherwise: whole parameters say, and not their shards."""
        return [name for name, shape in zip(self.names, self.shapes, strict=True) if is_small(shape)]


class ShardGroup(_ParameterGroup):
    """The parameters that one fully_shard() reduces together."""

    def __init__(self, module: Any, group: Any, names: dict[tuple[int, str], str]):
        super().__init__(module, group, [parameter for parameter in group.fsdp_params if parameter.sharded_param.requires_grad], names)
        self.reducing: list[int] = []  # places, in `names`, of what is in the reduction at hand

    @property
    def dtype(self) -> torch.dtype:
        """Of what is reduced; all of a group's parameters have one."""
        policy = self._group.mp_policy
        return policy.reduce_dtype or policy.param_dtype or self._parameters[0].sharded_param.dtype

    @property
    def divide_factor(self) -> float | None:
        """What the sum over all workers is divided by, if the script has set it."""
        return self._group.gradient_divide_factor

    def gradients(self) -> list[torch.Tensor]:
        """This worker's shards of those that parameters have now."""
        gradients = [parameter.sharded_param.grad for parameter in self._parameters]
        return [gradient.to_local() for gradient in gradients if gradient is not None]

    def watch(self) -> None:
        """From now on `reducing` is told before each reduction."""
        post_backward = self._group.post_backward

        def watched(*unused: Any) -> None:
            self.reducing = self._places_with_gradients()
            post_backward(*unused)

        self._group.post_backward = watched

    def unwatch(self) -> None:
        del self._group.post_backward

    @property
    def is_watched(self) -> bool:
        return "post_backward" in vars(self._group)

    def _places_with_gradients(self) -> list[int]:
        """As post_backward() finds them."""
        places = {id(parameter): place for place, parameter in enumerate(self._parameters)}
        try:
            return [places[id(parameter)] for parameter in self._group.fsdp_params if self._has_gradient(parameter)]
        except KeyError:
            raise ArgumentError(
                "FSDP reduces a parameter that required no gradient when thinwire was attached; attach after freezing"
            ) from None

    def _has_gradient(self, parameter: Any) -> bool:
        if not hasattr(parameter, "_unsharded_param"):  # not gathered yet
            return False
        if parameter.unsharded_accumulated_grad is not None or parameter.unsharded_param.grad is not None:
            return True
        return self._group.reduce_scatter_unused_params and parameter.unsharded_param.requires_grad

    # The reduce-scatter of FSDP, and what follows it.

    def replace_reduce_scatter(self, comm: Any) -> Any:
        """Returns what it was."""
        before = self._group._reduce_scatter_comm
        self.module.set_custom_reduce_scatter(comm)
        return before

    def hook_shards(self, hook: Callable[[torch.Tensor], None], alone: dist.ProcessGroup) -> None:
        """HSDP calls the hook once it has all-reduced, so it is made to do that among the members of ``alone``, this worker. Gradients are
        divided by the number of shard ranks then; that they are not all-reduced (set_requires_all_reduce) works as before."""
        self._replicas = self._group.mesh_info.replicate_process_group
        self._group.mesh_info.replicate_process_group = alone
        self.module.set_all_reduce_hook(hook)

    def unhook_shards(self) -> None:
        self._group.mesh_info.replicate_process_group = self._replicas
        self.module.set_all_reduce_hook(None)

    def hook_alone(self, hook: Callable[[torch.Tensor], None] | None) -> None:
        """For a mesh of one worker, where FSDP calls no reduce-scatter."""
        self.module.set_all_reduce_hook(hook)

    @property
    def has_hook(self) -> bool:
        return self._group._all_reduce_hook is not None

    @property
    def has_custom_reduce_scatter(self) -> bool:
        return type(self._group._reduce_scatter_comm).__name__ != "DefaultReduceScatter"


class GatheredGroup(_ParameterGroup):
    """The parameters that one fully_shard() gathers together, frozen ones too."""

    def __init__(self, module: Any, group: Any, names: dict[tuple[int, str], str]):
        super().__init__(module, group, group.fsdp_params, names)

    @property
    def row_elements(self) -> list[int]:
        return [math.prod(shape) for shape in self.row_shapes]

    @property
    def dtype(self) -> torch.dtype | None:
        """Of what is gathered; None where parameters have several, or bring what is gathered themselves (fsdp_pre_all_gather)."""
        param_dtype = self._group.mp_policy.param_dtype
        types = {param_dtype or parameter.sharded_param.dtype for parameter in self._parameters}
        own_ways = any(hasattr(parameter._sharded_local_tensor, "fsdp_pre_all_gather") for parameter in self._parameters)
        return types.pop() if len(types) == 1 and not own_ways else None

    @property
    def goes_back(self) -> bool:
        """Whether what is gathered is for a backward pass, whose forward pass has gathered it too."""
        return self._group._training_state.name == "PRE_BACKWARD"

    @property
    def is_of_fewer(self) -> bool:
        """Whether what is gathered is what fewer workers keep from the forward pass to the backward pass (reshard_after_forward=N)."""
        return self._group._sharded_state.name == "SHARDED_POST_FORWARD"

    def replace_all_gather(self, comm: Any) -> Any:
        """Returns what it was."""
        before = self._group._all_gather_comm
        self.module.set_custom_all_gather(comm)
        return before

    @property
    def has_custom_all_gather(self) -> bool:
        return type(self._group._all_gather_comm).__name__ != "DefaultAllGather"


class FullyShardedModel:
    """A module that fully_shard() has prepared: its groups, and the process groups of its mesh."""

    def __init__(self, model: nn.Module):
        """Raises ArgumentError for what cannot be served, saying why and what to do."""
        self.model = model
        names = {(id(module), name): own_name(f"{prefix}.{name}" if prefix else name)
                 for prefix, module in model.named_modules() for name, _ in module.named_parameters(recurse=False)}
        self.names_in_model = [own_name(name) for name, _ in model.named_parameters()]
        groups: dict[int, ShardGroup] = {}
        self.gathered: list[GatheredGroup] = []  # also of what is frozen
        meshes = []
        for module in model.modules():
            for group in _param_groups(module):
                if id(group) in groups:
                    continue  # of fully_shard([one, another]), which share it
                _check(module, group)
                groups[id(group)] = ShardGroup(module, group, names)
                self.gathered.append(GatheredGroup(module, group, names))
                meshes.append(group.mesh_info)
        self.groups = [group for group in groups.values() if group.names]
        if not self.groups:
            raise ArgumentError(f"{type(model).__name__} has no parameter that requires a gradient; there is nothing to average")
        _check_one_mesh(meshes)
        self.mesh: dist.DeviceMesh = meshes[0].mesh
        self.shard_group: dist.ProcessGroup = meshes[0].shard_process_group
        self.replicate_group: dist.ProcessGroup | None = getattr(meshes[0], "replicate_process_group", None)

    @property
    def shards(self) -> int:
        """In how many a parameter is divided."""
        return dist.get_world_size(self.shard_group)


def is_fully_sharded(model: Any) -> bool:
    """Whether fully_shard() has prepared it, and not replicate(), whose models say that they are FSDP's too."""
    bases = [base.__name__ for base in type(model).__mro__]
    return "FSDPModule" in bases and "ReplicateModule" not in bases


def _param_groups(module: nn.Module) -> list[Any]:
    if not is_fully_sharded(module):
        return []
    try:
        return module._get_fsdp_state()._fsdp_param_groups
    except AttributeError:
        raise ArgumentError(
            f"thinwire knows how FSDP2 is made in torch 2.13, and not in {torch.__version__}; use that, or DistributedDataParallel"
        ) from None


def _check(module: Any, group: Any) -> None:
    name = type(module).__name__
    if len(module._get_fsdp_state()._fsdp_param_groups) > 1:
        raise ArgumentError(
            f"{name} has parameters on several meshes (shard_placement_fn), and FSDP takes no hook of such a module. Shard the parameters "
            "of another mesh by a fully_shard() of their own, as a module that thinwire is not attached to"
        )
    if any(parameter.is_dtensor for parameter in group.fsdp_params):
        raise ArgumentError(
            f"{name} has parameters that are tensor parallel too, and thinwire takes those of fully_shard() alone. Leave tensor "
            "parallelism away, and shard over all its workers, or train without thinwire"
        )


def _check_one_mesh(meshes: list[Any]) -> None:
    for mesh in meshes[1:]:
        if mesh.mesh != meshes[0].mesh:
            raise ArgumentError(
                f"the model's modules are sharded on two meshes, {meshes[0].mesh} and {mesh.mesh}; attach() to a module whose parameters "
                "are all on one, or call fully_shard() with one"
            )


def check_length(elements: int, expected: int) -> None:
    """Raises StateError: what FSDP reduces is not what thinwire believes."""
    if elements != expected:
        raise StateError(
            f"FSDP reduces {elements} elements where thinwire expected {expected}: this is torch {torch.__version__}, whose FSDP differs "
            "from torch 2.13's, or something else has changed the model's FSDP modules. Use torch 2.13"
        )
