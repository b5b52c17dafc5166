import { type Box, type Flame, matches, type Shown } from "./flame";
import { type Colour, palette } from "./palette.svelte";

export const ROW = 20;
/** Rectangles narrower than so many pixels are not drawn, and names only where there is room for some of them. */
const THINNEST = 0.4;
const READABLE = 34;

export interface Look {
  shown: Shown;
  search: string;
  /** Place of the box with the keyboard's or the pointer's attention; -1: none. */
  lit: number;
  /** What the same ways took in another profile; null: nothing is compared. */
  before: Map<string, number> | null;
}

export function paint(context: CanvasRenderingContext2D, flame: Flame, look: Look, width: number, ratio: number): void {
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, flame.depth * ROW);
  const { from, to } = look.shown;
  if (!(to > from)) return;
  context.font = "12px ui-monospace, Menlo, Consolas, monospace";
  context.textBaseline = "middle";
  const scale = width / (to - from);
  const ink = palette.of("ink");
  flame.boxes.forEach((box, place) => {
    const left = Math.max((box.start - from) * scale, 0);
    const right = Math.min((box.start + box.total - from) * scale, width);
    if (right - left < THINNEST) return;
    const top = box.depth * ROW;
    const dimmed = look.search !== "" && !matches(box, look.search);
    context.fillStyle = colourOf(box, flame, look, dimmed);
    context.fillRect(left, top, Math.max(right - left - 0.5, THINNEST), ROW - 1);
    if (place === look.lit) {
      context.strokeStyle = ink;
      context.lineWidth = 1.5;
      context.strokeRect(left + 0.75, top + 0.75, Math.max(right - left - 2, 1), ROW - 2.5);
    }
    if (right - left < READABLE) return;
    context.save();
    context.beginPath();
    context.rect(left, top, right - left - 3, ROW);
    context.clip();
    context.fillStyle = dimmed ? palette.of("dim") : ink;
    context.fillText(box.name, left + 4, top + ROW / 2);
    context.restore();
  });
}

function colourOf(box: Box, flame: Flame, { before, search }: Look, dimmed: boolean): string {
  if (before !== null) {
    const change = box.total / flame.total - (before.get(box.key) ?? 0);
    const strength = Math.min(0.08 + Math.abs(change) * 2.5, 0.7);
    return palette.faded(change >= 0 ? "bad" : "accent", strength);
  }
  if (dimmed) return palette.faded("paused", 0.14);
  if (search !== "") return palette.faded("reorder_stall", 0.55);
  if (!box.user) return palette.faded("paused", 0.28);
  const colours: readonly Colour[] = ["startup", "fetch", "collate"];
  return palette.faded(colours[hash(box.name) % colours.length] as Colour, 0.38 + (hash(box.file + box.name) % 4) * 0.05);
}

function hash(text: string): number {
  let sum = 0;
  for (let place = 0; place < text.length; place++) sum = (sum * 31 + text.charCodeAt(place)) >>> 0;
  return sum;
}
