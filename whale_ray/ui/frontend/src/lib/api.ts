// Calls of the server. What it refuses is an Error with its line.

import type { Run } from "./types";

const TOKEN_HEADER = "X-Whale-Ray-Token";
const TOKEN_KEY = "whale-ray-token";

/** Take the token out of the address, so that it is in no history and no bookmark. */
export function takeToken(): void {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (!found?.[1]) return;
  sessionStorage.setItem(TOKEN_KEY, found[1]);
  history.replaceState(null, "", "#/");
}

export function hasToken(): boolean {
  return sessionStorage.getItem(TOKEN_KEY) !== null;
}

async function answer<T>(response: Response): Promise<T> {
  const content: unknown = await response.json().catch(() => null);
  if (!response.ok) {
    const told = (content as { error?: string } | null)?.error;
    throw new Error(told ?? `the server answered ${response.status} ${response.statusText}`);
  }
  return content as T;
}

export async function get<T>(path: string): Promise<T> {
  return answer<T>(await fetch(path));
}

export async function post<T>(path: string, body: string): Promise<T> {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers: Record<string, string> = token === null ? {} : { [TOKEN_HEADER]: token };
  return answer<T>(await fetch(path, { method: "POST", headers, body }));
}

export function loadRun(id: string): Promise<Run> {
  return get<Run>(`/api/jobs/${encodeURIComponent(id)}`);
}

type Handlers = Record<string, (content: never) => void>;

/** Follow events of the server until the returned function is called. */
export function follow(path: string, handlers: Handlers, connected: (is: boolean) => void) {
  const source = new EventSource(path);
  source.onopen = () => connected(true);
  source.onerror = () => connected(false); // the browser connects again by itself
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => handle(JSON.parse(event.data) as never));
  }
  return () => source.close();
}
