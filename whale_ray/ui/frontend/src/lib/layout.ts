// Places of a graph's nodes, from left to right or from top to bottom.

import dagre from "@dagrejs/dagre";

export interface Box {
  id: string;
  width: number;
  height: number;
}

const GAP = 80;
const WIDER_THAN_HIGH = 2.2;

/** Rows of boxes, for what has no direction; between them are streets, as wide as a gap. */
export interface Grid {
  columns: number;
  width: number; // from one column to the next
  height: number;
}

export function gridOf(boxes: Box[]): Grid {
  const width = Math.max(...boxes.map((box) => box.width)) + GAP;
  const height = Math.max(...boxes.map((box) => box.height)) + GAP;
  const columns = Math.ceil(Math.sqrt((boxes.length * WIDER_THAN_HIGH * height) / width));
  return { columns, width, height };
}

export function layInGrid(boxes: Box[]): Map<string, { x: number; y: number }> {
  const { columns, width, height } = gridOf(boxes);
  return new Map(
    boxes.map((box, place) => [
      box.id,
      { x: (place % columns) * width, y: Math.floor(place / columns) * height },
    ]),
  );
}

const LANES = 9;
const LANE = GAP / (LANES + 1);

/** A line from box to box through the streets, so behind no box; lines side by side have other lanes. */
export function throughStreets(boxes: Box[], from: number, to: number): string {
  const { columns, width, height } = gridOf(boxes);
  const lane = ((from + to) % LANES) + 1;
  const row = (place: number) => Math.floor(place / columns);
  const street = (place: number) => (row(place) + 1) * height - GAP + lane * LANE;
  const [door, otherDoor] = [from, to].map((place) => {
    const middle = (place % columns) * width + (boxes[place]?.width ?? 0) / 2;
    return { x: middle + (lane - (LANES + 1) / 2) * LANE, y: row(place) * height + (boxes[place]?.height ?? 0) };
  }) as [{ x: number; y: number }, { x: number; y: number }];
  const left = to % columns < from % columns;
  const aside = ((from % columns) + (left ? 0 : 1)) * width - GAP + lane * LANE;
  const across = row(from) === row(to) ? "" : `H${aside}V${street(to)}`;
  return `M${door.x} ${door.y}V${street(from)}${across}H${otherDoor.x}V${otherDoor.y}`;
}

export function layOut(
  boxes: Box[],
  arrows: [string, string][],
  direction: "LR" | "TB",
): Map<string, { x: number; y: number }> {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: direction, nodesep: 28, ranksep: direction === "LR" ? 84 : 56 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const box of boxes) graph.setNode(box.id, { width: box.width, height: box.height });
  for (const [source, target] of arrows) graph.setEdge(source, target);
  dagre.layout(graph);
  return new Map(
    boxes.map((box) => {
      const at = graph.node(box.id);
      return [box.id, { x: at.x - box.width / 2, y: at.y - box.height / 2 }];
    }),
  );
}
