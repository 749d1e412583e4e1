// Places of a graph's nodes, from left to right or from top to bottom.

import dagre from "@dagrejs/dagre";

export interface Box {
  id: string;
  width: number;
  height: number;
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
