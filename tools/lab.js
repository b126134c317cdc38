// What tools/lab.py asks of the page: each function looks at JupyterLab's current notebook and returns plain values.
(() => {
    const cells = () => window.jupyterapp.shell.currentWidget.content.widgets;
    const tags = cell => cell.model.getMetadata('tags') || [];
    const meantToFail = cell => tags(cell).includes('raises-exception');

    // Open another notebook beside nothing; or take the one that is open away, without a question whether to save it.
    const open = (path, kernel) => {
        const known = kernel ? { kernel: { id: kernel, name: 'python3' } } : {};
        window.jupyterapp.commands.execute('docmanager:open', { path, factory: 'Notebook', ...known });
    };
    const close = () => window.jupyterapp.shell.currentWidget?.dispose();

    // Whether the notebook and its kernel are ready, at the latest after so many seconds.
    const ready = async seconds => {
        const app = window.jupyterapp;
        const wait = async () => {
            await app.restored;
            const context = app.shell.currentWidget.context;
            await context.ready;
            await context.sessionContext.ready;
            await context.sessionContext.session.kernel.info;
            return true;
        };
        const limit = new Promise(resolve => setTimeout(() => resolve(false), 1000 * seconds));
        return await Promise.race([wait(), limit]);
    };

    // Run code in the notebook's kernel, unseen; return the kernel's id, nothing if it does not answer in so many seconds.
    const run = async (code, seconds) => {
        const kernel = window.jupyterapp.shell.currentWidget.context.sessionContext.session?.kernel;
        if (!kernel) return '';
        const done = kernel.requestExecute({ code, store_history: false }).done.then(
            reply => reply.content.status === 'ok' ? kernel.id : '', () => '');
        return await Promise.race([done, new Promise(resolve => setTimeout(() => resolve(''), 1000 * seconds))]);
    };

    // The source is asked of the model: the page may not have drawn the editor of a cell yet.
    // A folded cell shows no prompt that changes: its model says whether it has run.
    const prompt = cell => {
        if (cell.inputHidden) {
            return `[${cell.model.executionCount ?? ' '}]:`;
        }
        return cell.node.querySelector('.jp-InputPrompt')?.textContent.trim() || '[ ]:';
    };
    const prompts = () => cells()
        .filter(cell => cell.model.type === 'code' && cell.model.sharedModel.getSource().trim())
        .map(prompt);

    const errors = () => {
        const found = [];
        for (const cell of cells()) {
            if (cell.model.type !== 'code' || meantToFail(cell)) continue;
            for (let i = 0; i < cell.model.outputs.length; i++) {  // of pictures, half a megabyte each, no copy
                const output = cell.model.outputs.get(i);
                if (output.type !== 'error') continue;
                const { ename, evalue } = output.toJSON();
                found.push(ename + ': ' + evalue);
            }
            for (const element of cell.node.querySelectorAll('.idt-error, .jupyter-widgets-error-widget'))
                found.push(element.innerText.trim() || element.className);
        }
        return found;
    };

    const warnings = () => {
        const found = [];
        const meant = cells().filter(meantToFail);
        for (const area of document.querySelectorAll('.jp-OutputArea-output')) {
            if (meant.some(cell => cell.node.contains(area))) continue;
            const text = area.innerText.trim().slice(0, 200);
            if (area.dataset.mimeType === 'application/vnd.jupyter.stderr') found.push('stderr: ' + text);
            if (text.includes('Error displaying widget')) found.push(text);
            const picture = area.querySelector('img, svg');
            const room = area.getBoundingClientRect().width;
            if (picture && picture.getBoundingClientRect().width > room + 1)
                found.push(`a figure ${Math.round(picture.getBoundingClientRect().width)} px wide`
                    + ` in ${Math.round(room)} px: ` + (picture.alt || ''));
            if (area.scrollWidth > area.clientWidth + 1)
                found.push(`an output ${area.scrollWidth} px wide in ${area.clientWidth} px: ` + text);
        }
        return found;
    };

    // How high the notebook is, and the window on it.
    const heights = () => {
        const box = document.querySelector('.jp-WindowedPanel-outer');
        const bottom = Math.max(...[...box.querySelectorAll('.jp-Cell')].map(c => c.getBoundingClientRect().bottom));
        return [bottom - box.getBoundingClientRect().top + box.scrollTop, box.clientHeight];
    };

    // The words beside a control.
    const label = element => {
        const box = element.closest('.widget-inline-hbox, .widget-toggle-buttons') || element.parentElement;
        const words = node => node ? node.innerText.replace(/\u200b/g, '').trim() : '';
        return words(box.querySelector('.widget-label')) || words(box);
    };

    // What can't be seen of a control: words that are cut, a slider whose words leave it no track to move on.
    const unseen = element => {
        const box = element.closest('.widget-inline-hbox, .widget-toggle-buttons') || element.parentElement;
        const found = [];
        for (const words of box.querySelectorAll('.widget-label, .widget-label-basic, .widget-readout'))
            if (words.scrollWidth > words.clientWidth + 1) found.push(`words that are cut: ${words.innerText.trim()}`);
        const track = element.closest('.noUi-target')?.getBoundingClientRect().width;
        if (track < 100) found.push(`a track of ${Math.round(track)} px`);
        return found;
    };

    window.idt = { open, close, ready, run, prompts, errors, warnings, heights, label, unseen };
})();
