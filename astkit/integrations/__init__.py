"""Policies in other libraries' loops: recipes in docs/recipes.md.

transformers has a trainer of its own, ``astkit.integrations.huggingface.PolicyTrainer``.
"""
