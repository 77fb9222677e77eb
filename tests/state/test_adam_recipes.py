from __future__ import annotations

import pytest
import torch
from torch import nn

from ckptstore.state.adam import Recipe, find_recipes
from ckptstore.state.tree import flatten


def found(app_state):
    return find_recipes(flatten(app_state))


def step(optimizer, *parameters):
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_what_belongs_together_is_found(cls):
    model = network()
    optimizer = cls(model.parameters(), lr=0.01)
    step(optimizer, *model.parameters())
    recipes = found({"model": model, "nested": {"optim": optimizer}})
    assert [recipe.weight for recipe in recipes] == ["model/0.weight", "model/0.bias", "model/1.weight", "model/1.bias"]
    assert recipes[2] == Recipe(
        weight="model/1.weight",
        first="nested/optim/state/2/exp_avg",
        second="nested/optim/state/2/exp_avg_sq",
        count="nested/optim/state/2/step",
        group="nested/optim/param_groups/0",
    )


def test_the_paths_are_those_of_the_flattened_state():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(optimizer, *model.parameters())
    app_state = {"a/b": [optimizer], "model": model}
    flat = flatten(app_state)
    for recipe in find_recipes(flat):
        assert {recipe.weight, recipe.first, recipe.second, recipe.count, f"{recipe.group}/lr"} <= set(flat.leaves)


def test_every_weight_has_the_group_it_is_in():
    model = network()
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.1}])
    step(optimizer, *model.parameters())
    recipes = found({"model": model, "optim": optimizer})
    assert [recipe.group[-1] for recipe in recipes] == ["0", "0", "1", "1"]
    assert recipes[2].second == "optim/state/2/exp_avg_sq"


def test_several_optimizers():
    model = network()
    one = torch.optim.Adam(model[0].parameters(), lr=0.1)
    two = torch.optim.AdamW(model[1].parameters(), lr=0.2)
    step(one, *model[0].parameters())
    step(two, *model[1].parameters())
    step(two, *model[1].parameters())
    recipes = found({"one": one, "two": two, "model": model})
    assert [(recipe.weight, recipe.first, recipe.group) for recipe in recipes] == [
        ("model/0.weight", "one/state/0/exp_avg", "one/param_groups/0"),
        ("model/0.bias", "one/state/1/exp_avg", "one/param_groups/0"),
        ("model/1.weight", "two/state/0/exp_avg", "two/param_groups/0"),
        ("model/1.bias", "two/state/1/exp_avg", "two/param_groups/0"),
    ]


def test_tied_weights_have_the_path_that_holds_their_chunks():
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embedding"].weight
    optimizer = torch.optim.AdamW(model.parameters())
    step(optimizer, *model.parameters())
    app_state = {"model": model, "optim": optimizer}
    (recipe,) = found(app_state)
    (tied,) = flatten(app_state).aliases
    assert recipe.weight == tied[0] == "model/embedding.weight"


def test_weights_that_were_not_trained_are_left_out():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    assert found({"model": model, "optim": optimizer}) == []
    step(optimizer, model[1].weight)
    assert [recipe.weight for recipe in found({"model": model, "optim": optimizer})] == ["model/1.weight"]


def test_weights_that_are_not_in_the_state_are_left_out():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(optimizer, *model.parameters())
    assert found({"optim": optimizer}) == []
    assert len(found({"optim": optimizer, "model": model[0]})) == 2
    assert found({"model": model, "plain": optimizer.state_dict()}) == []


def test_a_copy_of_the_weights_is_not_what_adam_changes():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(optimizer, *model.parameters())
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert found({"average": copies, "optim": optimizer}) == []
    assert found({"average": copies, "model": model, "optim": optimizer})[0].weight == "model/0.weight"


class Mine(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("cls", [Mine, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax])
def test_other_optimizers_are_left_out(cls):
    model = network()
    optimizer = cls(model.parameters())
    step(optimizer, *model.parameters())
    assert found({"model": model, "optim": optimizer}) == []


def test_amsgrad_is_left_out_group_by_group():
    model = network()
    groups = [{"params": model[0].parameters(), "amsgrad": True}, {"params": model[1].parameters()}]
    optimizer = torch.optim.Adam(groups)
    step(optimizer, *model.parameters())
    recipes = found({"model": model, "optim": optimizer})
    assert [recipe.weight for recipe in recipes] == ["model/1.weight", "model/1.bias"]


@pytest.mark.parametrize("way", [{"foreach": True}, {"fused": True}, {"maximize": True}], ids=str)
def test_the_way_of_computing_does_not_matter(way):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), **way)
    step(optimizer, *model.parameters())
    assert len(found({"model": model, "optim": optimizer})) == 4


def test_sharded_moments_of_another_shape_are_left_out():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(optimizer, *model.parameters())
    kept = optimizer.state[model[0].weight]
    kept["exp_avg"] = kept["exp_avg"][:2]
    recipes = found({"model": model, "optim": optimizer})
    assert [recipe.weight for recipe in recipes] == ["model/0.bias", "model/1.weight", "model/1.bias"]
