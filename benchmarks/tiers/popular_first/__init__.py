"""Measures popular first in serving: hot queries beside cold ones, with it, without it, and all in memory."""
