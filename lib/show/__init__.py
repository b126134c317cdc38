"""The primitives of all pictures; nothing else in lib imports matplotlib or ipywidgets.

A figure is a pure function: `@styled`, plain values in, `describe(figure, alt_text)` out. Its room (a notebook's
figures.py) holds what only it says; how a thing looks is said here, once.

style          INK MUTED PAPER BLUE … RANKS PALETTE HATCH · TRACK DOTS IDLE RECORDED (keywords of a patch)
               new_figure     an empty figure, its Axes                 styled       house style around a `draw_*`
               title          the finding, over one Axes                headline     the finding, over several panels
               source_note    below: where numbers come from            describe     the alt text; `alt_text` reads it
               rank_color, color_of (a kind), ink_on (a colour), pale, mixed · png, shown_size
sheet          cell_sheet     a figure whose unit is a cell             inch_sheet   a figure whose unit is an inch
               cell_axes      the same for given Axes                   write        text around a middle
               box            a rounded box around a text               arrow        straight or bent
               label_row      a row's name beside cells                 name_rank, note   on inches
               Cell, draw_cell, draw_cells, draw_strip                  index cells; draw_legend explains them
lanes          draw_timeline  traces as lanes, predicted and measured   lay_out      rows, unit, letters and words of it
               lane_rows      a row a lane, on your own Axes            bar          what a lane does, with its label
               idle           the sign for idle in gaps of a lane       ticks        round numbers for an axis
charts         log2_axis      1, 2, 4 … written at their places         beside       words beside a point
               bars           filled measured, outlined predicted       legend_pair  the legend of the two
               row_bars       lying bars with words at their ends
schedule_table  draw_schedule, draw_schedules   runs of tables, bubbles hatched, activations held
               draw_ranks     the rows of one run, on your own Axes     draw_refused   a table that can't run
               MAKERS, make   any schedule by its name
               held, facts, name_of   words for them
explore        explore        sliders over a `draw_*`                   whole, steps, choice, switch   its controls
               frame, bundle  a live picture as HTML; an output
"""
