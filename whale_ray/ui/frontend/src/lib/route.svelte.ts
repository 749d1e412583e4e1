// The place in the page: #/, #/optimizer, #/builder, #/job/ID/VIEW?with=OTHER.

export interface Route {
  page: string;
  job: string;
  view: string;
  other: string;
}

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page = "", job = "", view = ""] = path.split("/").map(decodeURIComponent);
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
