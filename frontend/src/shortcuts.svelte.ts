/** Single-key shortcuts. Components offer theirs while they are shown; the help dialog lists what is on offer. */

export interface Shortcut {
  keys: readonly string[];
  label: string;
  run: () => void;
}

const STORED = "penstock-shortcuts";

class Shortcuts {
  offered = $state.raw<readonly Shortcut[]>([]);
  /** They can be switched off, for people whose assistive technology types. */
  enabled = $state(stored());
  help = $state(false);
  #all: readonly Shortcut[] = [];

  constructor() {
    addEventListener("keydown", (event) => this.#pressed(event));
  }

  /** Called from effects, which must not depend on what they change here: hence the second, plain list. */
  offer(shortcuts: readonly Shortcut[]): () => void {
    this.#all = [...this.#all, ...shortcuts];
    this.offered = this.#all;
    return () => {
      this.#all = this.#all.filter((each) => !shortcuts.includes(each));
      this.offered = this.#all;
    };
  }

  enable(on: boolean): void {
    this.enabled = on;
    try {
      localStorage.setItem(STORED, on ? "on" : "off");
    } catch {
      // Private windows may refuse; the choice then lasts as long as the page.
    }
  }

  #pressed(event: KeyboardEvent): void {
    if (!this.enabled || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as HTMLElement;
    if (target.closest("input:not([type=range], [type=checkbox]), select, textarea, dialog")) return;
    if (event.key === "?") {
      this.help = true;
      return;
    }
    const shortcut = this.offered.find(({ keys }) => keys.includes(event.key));
    if (shortcut === undefined) return;
    event.preventDefault();
    shortcut.run();
  }
}

function stored(): boolean {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true;
  }
}

export const shortcuts = new Shortcuts();
