"""Divides lane time between the models of one server, by pools of lanes, allotted time and turns."""
