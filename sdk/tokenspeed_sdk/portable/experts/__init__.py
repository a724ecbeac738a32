"""Mixture of experts: choosing experts, and computing the chosen ones."""
