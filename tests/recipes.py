"""Recipes that ship, with something changed."""

import dataclasses

from kzoo.zoo.recipes import Recipe, shipped


def recipe_of(name, **tables):
    """A shipped `Recipe`; each table is given as the keys that change in it."""
    recipe = Recipe.load(shipped()[name])
    return dataclasses.replace(
        recipe,
        **{
            table: dataclasses.replace(getattr(recipe, table), **changes)
            for table, changes in tables.items()
        },
    )
