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

/** What signs in, if it is in the address: the code of a link that works once, `#once=…`, or a token, `#token=…`. */
export function secretIn(hash: string): { token: string } | { once: string } | null {
  const match = /^#\/?\??(token|once)=([^&]+)/.exec(hash);
  if (match?.[2] === undefined) return null;
  const value = decodeURIComponent(match[2]);
  return match[1] === "once" ? { once: value } : { token: value };
}
