// Places of a graph's nodes, from left to right or from top to bottom.

import dagre from "@dagrejs/dagre";

export interface Box {
  id: string;
  width: number;
  height: number;
}

const GAP = 80;
const WIDER_THAN_HIGH = 2.2;

/** Rows of boxes, for what has no direction. */
export function layInGrid(boxes: Box[]): Map<string, { x: number; y: number }> {
  const width = Math.max(...boxes.map((box) => box.width)) + GAP;
  const height = Math.max(...boxes.map((box) => box.height)) + GAP;
  const columns = Math.ceil(Math.sqrt((boxes.length * WIDER_THAN_HIGH * height) / width));
  return new Map(
    boxes.map((box, place) => [
      box.id,
      { x: (place % columns) * width, y: Math.floor(place / columns) * height },
    ]),
  );
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
