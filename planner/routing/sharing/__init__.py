"""Divides lanes' time between the models of a server: pools of lanes, allotted time, and turns."""
