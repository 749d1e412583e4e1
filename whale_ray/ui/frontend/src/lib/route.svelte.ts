// The place in the page: #/, #/optimizer, #/builder, #/job/ID/VIEW?with=OTHER.

export interface Route {
  page: string;
  job: string;
  view: string;
  other: string;
}

/** A part of an address; one that is damaged stands for itself, and names no job. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page = "", job = "", view = ""] = path.split("/").map(decoded);
  return { page, job, view: view || "topology", other: new URLSearchParams(query).get("with") ?? "" };
}

export const route = $state({ now: parse(location.hash) });

window.addEventListener("hashchange", () => {
  route.now = parse(location.hash);
});

export function jobPath(job: string, view = "topology", other = ""): string {
  const query = other ? `?with=${encodeURIComponent(other)}` : "";
  return `#/job/${encodeURIComponent(job)}/${view}${query}`;
}
