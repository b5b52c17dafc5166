/** Hash routes: they need nothing from the server and survive any proxy prefix. */

export type Route = { page: "overview" } | { page: "loader"; id: string };

export function parse(hash: string): Route {
  const match = /^#\/loader\/([^/?]+)$/.exec(hash);
  if (match?.[1] === undefined) return { page: "overview" };
  try {
    return { page: "loader", id: decodeURIComponent(match[1]) };
  } catch {
    return { page: "overview" };
  }
}

export function href(route: Route): string {
  return route.page === "loader" ? `#/loader/${encodeURIComponent(route.id)}` : "#/";
}

/** The token in the address that the terminal printed, if there is one: `#token=…`. */
export function tokenIn(hash: string): string | null {
  const match = /^#\/?\??token=([^&]+)/.exec(hash);
  return match?.[1] === undefined ? null : decodeURIComponent(match[1]);
}
