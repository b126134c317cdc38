"""Figures of the course: `draw_*` functions (values in, a matplotlib Figure out), and the widgets that wrap them."""
