// Multicast trees as the records have them: a root, and edges from parent to child.

import type { TreeShape } from "./types";

export function childrenOf(tree: TreeShape): Map<number, number[]> {
  const found = new Map<number, number[]>();
  for (const [parent, child] of tree.edges) {
    const children = found.get(parent);
    if (children) children.push(child);
    else found.set(parent, [child]);
  }
  return found;
}

export function parentsOf(tree: TreeShape): Map<number, number> {
  return new Map(tree.edges.map(([parent, child]) => [child, parent]));
}

export function hostsOf(...trees: TreeShape[]): number[] {
  const hosts = trees.flatMap((tree) => [tree.root, ...tree.edges.map(([, child]) => child)]);
  return [...new Set(hosts)].sort((a, b) => a - b);
}

/** The hosts of either tree whose parent is another one, or that are in one of them alone. */
export function movedBetween(before: TreeShape, after: TreeShape): Set<number> {
  const [from, to] = [parentsOf(before), parentsOf(after)];
  return new Set(hostsOf(before, after).filter((host) => from.get(host) !== to.get(host)));
}
