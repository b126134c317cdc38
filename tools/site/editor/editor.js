import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState, Prec } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";

// An editor of Python: lines are numbered, Tab indents (Escape, then Tab leaves), Ctrl-Enter calls `run`.
function make(parent, text, label, run, changed) {
  const keys = [{ key: "Mod-Enter", run: () => (run(), true) }];
  const extensions = [
    lineNumbers(),
    history(),
    drawSelection(),
    indentOnInput(),
    bracketMatching(),
    highlightActiveLine(),
    EditorView.lineWrapping, // nothing scrolls sideways, on a phone neither
    indentUnit.of("    "),
    python(),
    syntaxHighlighting(classHighlighter),
    Prec.highest(keymap.of(keys)),
    keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
    EditorView.contentAttributes.of({ "aria-label": label }),
    EditorView.updateListener.of((update) => update.docChanged && changed(update.state.doc.toString())),
  ];
  const view = new EditorView({ parent, state: EditorState.create({ doc: text, extensions }) });
  return {
    text: () => view.state.doc.toString(),
    write: (words) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: words } }),
    focus: () => view.focus(),
  };
}
window.makeEditor = make;
