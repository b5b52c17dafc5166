/**
 * The page's half of the session. A browser sends the cookie to every port of this host; the storage belongs to this
 * origin alone, port included. So the dashboard wants both, and neither is of use without the other.
 */

const key = () => `penstock-page ${new URL(".", document.baseURI).pathname}`;

export const page = {
  get half(): string {
    return localStorage.getItem(key()) ?? "";
  },
  keep(half: string): void {
    localStorage.setItem(key(), half);
  },
  forget(): void {
    localStorage.removeItem(key());
  },
};
