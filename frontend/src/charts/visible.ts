/** Seconds between two drawings of what is out of sight: somebody may print it, or take a picture of the whole page. */
export const REST = 5;

/** Call back when an element comes into view or leaves it: what nobody sees is drawn rarely. */
export function whileVisible(element: Element, change: (visible: boolean) => void): () => void {
  const observer = new IntersectionObserver((entries) => change(entries.some((entry) => entry.isIntersecting)), {
    rootMargin: "60px",
  });
  observer.observe(element);
  return () => observer.disconnect();
}
