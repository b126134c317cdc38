"""One control of an interactive figure in JupyterLab: read it, move it one step, put it back (for tools/lab.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator


@dataclass
class LiveControl:
    """One control of an interactive figure: a slider's handle, a dropdown, a checkbox or a row of buttons."""

    kind: str
    element: Locator
    label: str

    def value(self) -> str:
        """Return the control's value as the page knows it."""
        if self.kind == "slider":
            return self.element.get_attribute("aria-valuetext") or ""  # aria-valuenow has one decimal only
        if self.kind == "checkbox":
            return str(self.element.is_checked())
        if self.kind == "buttons":
            return self.element.locator(".mod-active").inner_text()
        return self.element.input_value()

    def move(self) -> None:
        """Move one step: a slider to the right (left where it is at its end), a dropdown to another option."""
        if self.kind == "slider":
            before = self.value()
            self.element.focus()
            self.element.press("ArrowRight")
            if self.value() == before:
                self.element.press("ArrowLeft")
        elif self.kind == "checkbox":
            self.element.click()
        elif self.kind == "buttons":
            self.element.locator(".widget-toggle-button:not(.mod-active)").first.click()
        else:
            self.element.select_option(index=self.element.evaluate("s => (s.selectedIndex + 1) % s.options.length"))

    def restore(self, before: str) -> None:
        """Put the control back to `before`, one step away."""
        if self.kind == "slider":
            self.element.press("ArrowLeft" if float(self.value()) > float(before) else "ArrowRight")
        elif self.kind == "checkbox":
            self.element.click()
        elif self.kind == "buttons":
            self.element.locator(".widget-toggle-button", has_text=before).first.click()
        else:
            self.element.select_option(value=before)

    def unseen(self) -> list[str]:
        """Return what can't be seen of it: words that are cut, a slider's track of less than 100 pixels."""
        return list(self.element.evaluate("element => idt.unseen(element)"))

    def readout(self) -> str | None:
        """Return the text that a slider prints beside it; None for other controls."""
        if self.kind != "slider":
            return None
        box = self.element.locator("xpath=ancestor::*[contains(@class, 'widget-inline-hbox')][1]")
        return box.locator(".widget-readout").inner_text()

    def readout_is_wrong(self) -> str | None:
        """Compare the number that a slider prints with its position; return a complaint or None.

        A slider over words or steps (ipywidgets' SelectionSlider) stands at a position, not at a number: not compared.
        """
        text = self.readout()
        if text is None or self.element.locator("xpath=ancestor::*[contains(@class, 'jupyter-widgets')][1]").evaluate(
            "box => !box.classList.contains('widget-slider')"
        ):
            return None
        position = float(self.value())
        for number in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", "").replace("\u2212", "-")):
            if abs(float(number) - position) <= 0.5 * 10 ** -len(number.partition(".")[2]) + 1e-9:
                return None
        return f"slider {self.label!r} stands at {position:g} but prints {text!r}"
