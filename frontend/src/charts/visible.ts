/** Call back when an element comes into view or leaves it: what nobody sees is not drawn. */
export function whileVisible(element: Element, change: (visible: boolean) => void): () => void {
  const observer = new IntersectionObserver((entries) => change(entries.some((entry) => entry.isIntersecting)), {
    rootMargin: "60px",
  });
  observer.observe(element);
  return () => observer.disconnect();
}
