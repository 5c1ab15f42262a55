// Stands for react-custom-scrollbars-2, whose default export the bundler does not find: a picture
// does not scroll.
export default function Scrollbars({ children }: any) {
  return <div style={{ height: '100%', overflow: 'hidden' }}>{children}</div>;
}
