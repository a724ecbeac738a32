"""Test kit: a model without weights whose answers are known in advance."""
